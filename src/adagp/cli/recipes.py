"""What the commands that train say of methods and presets."""

from typing import Annotated

import typer

from adagp.training import methods
from adagp.training.recipe_files import preset_summaries

_METHODS = "Methods:\n\n" + "\n".join(f"- `{line.replace(': ', '`: ', 1)}." for line in methods.summary().splitlines())
_PRESETS = "Presets:\n\n" + "\n".join(f"- `{name}`: {about}." for name, about in preset_summaries().items())
RECIPES_HELP = f"{_METHODS}\n\n{_PRESETS}"

Preset = Annotated[str | None, typer.Option(help="Start from a shipped recipe; those there are stand below.")]
