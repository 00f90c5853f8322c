"""Every command of `adagp`, where it is, and its summary."""

import io
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

_MARKUP: Final[Literal["markdown"]] = "markdown"


class Listed(NamedTuple):
    """A command in the list: what is known of it before it is imported.

    Attributes:
        module: Where it is. A module with one function instead of a group may have an EPILOG for its help.
        attribute: Of the module: the function or the group.
        summary: The first line of its help.
    """

    module: str
    attribute: str
    summary: str


COMMANDS: Mapping[str, Listed] = {
    "train": Listed("adagp.cli.train", "train_command", "Train one model by one method, resumably."),
    "compare": Listed(
        "adagp.cli.compare",
        "compare_command",
        "Train several methods over several seeds, interleaved, and judge them.",
    ),
    "schedule": Listed(
        "adagp.cli.schedule",
        "schedule_app",
        "Show which batches a method trains by backpropagation and which it predicts.",
    ),
    "reproduce": Listed(
        "adagp.cli.reproduce", "reproduce_app", "`adagp reproduce`: the papers' tables, ours beside theirs."
    ),
    "simulate": Listed(
        "adagp.cli.simulate",
        "simulate_app",
        "Tell the cycles, speed-up and memory energy of training on a 180-PE accelerator, plain and with ADA-GP.",
    ),
    "pipeline": Listed(
        "adagp.cli.pipeline",
        "pipeline_command",
        "Tell the steps of a pipeline in any sequence of phases, and draw which device does what when.",
    ),
    "hardware": Listed(
        "adagp.cli.hardware",
        "hardware_app",
        "`adagp hardware`: the accelerator in RTL: check it, synthesise it, write it out.",
    ),
    "models": Listed(
        "adagp.cli.lists",
        "models_command",
        "List the networks in all their forms, their size, and how many layers predictions can cover.",
    ),
    "data": Listed(
        "adagp.cli.data",
        "data_command",
        "List the data sets with their task and size, and for those that are not there, where they are expected.",
    ),
}


class _Commands(TyperGroup):
    """Imports a command when it is asked for, and none to list them."""

    # Typer carries click within itself or beside it, as its version goes: so its types have no name here.
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        listed = COMMANDS[cmd_name]
        module = import_module(listed.module)
        found = getattr(module, listed.attribute)
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
            alone.command(cmd_name, epilog=getattr(module, "EPILOG", None))(found)
            command = typer.main.get_command(alone)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show each command by its summary alone."""
        listing = TyperGroup(
            name=self.name,
            help=self.help,
            params=self.params,
            commands={name: TyperCommand(name, help=listed.summary) for name, listed in COMMANDS.items()},
            rich_markup_mode=self.rich_markup_mode,
        )
        listing.format_help(ctx, formatter)


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
