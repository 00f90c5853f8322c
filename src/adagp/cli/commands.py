"""Every command of `adagp` and where it is."""

import io
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Literal

import typer
from typer.core import TyperGroup

# Where each command is; a module with one function instead of a group may have an EPILOG for its help.
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "train": ("adagp.cli.train", "train_command"),
    "compare": ("adagp.cli.compare", "compare_command"),
    "schedule": ("adagp.cli.schedule", "schedule_app"),
    "reproduce": ("adagp.cli.reproduce", "reproduce_app"),
    "simulate": ("adagp.cli.simulate", "simulate_app"),
    "pipeline": ("adagp.cli.pipeline", "pipeline_command"),
    "hardware": ("adagp.cli.hardware", "hardware_app"),
    "models": ("adagp.cli.lists", "models_command"),
    "data": ("adagp.cli.data", "data_command"),
}
_MARKUP: Final[Literal["markdown"]] = "markdown"


class _Commands(TyperGroup):
    """Imports a command when it is asked for: simulating needs no torch, and does not wait for it."""

    # Typer carries click within itself or beside it, as its version goes: so its types have no name here.
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module_name, attribute = _COMMANDS[cmd_name]
        module = import_module(module_name)
        found = getattr(module, attribute)
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
            alone.command(cmd_name, epilog=getattr(module, "EPILOG", None))(found)
            command = typer.main.get_command(alone)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="adagp",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=_MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train PyTorch models with adaptive gradient prediction, and see honestly what it gives.

Start with `adagp compare --preset demo`: two minutes, no download, every method side by side.
""",
)


@app.callback()
def _root() -> None:
    pass


def run() -> None:
    """Read the command line and do what it asks; characters that the terminal cannot show become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()
