"""What the commands that train say of methods and presets."""

from typing import Annotated

import typer

from adagp.training import load_preset, methods, preset_names

_METHODS = "Methods:\n\n" + "\n".join(f"- `{line.replace(': ', '`: ', 1)}." for line in methods.summary().splitlines())
_PRESETS = "Presets:\n\n" + "\n".join(f"- `{name}`: {load_preset(name).about}." for name in preset_names())
RECIPES_HELP = f"{_METHODS}\n\n{_PRESETS}"

Preset = Annotated[str | None, typer.Option(help="Start from a shipped recipe; those there are stand below.")]
