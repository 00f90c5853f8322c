"""Groups of commands that import a command when it is run, and nothing to list them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Final, Literal, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

MARKUP: Final[Literal["markdown"]] = "markdown"


class Listed(NamedTuple):
    """A command that is not imported yet.

    Attributes:
        module: The module that has it. With a function, not a group, it may also have an EPILOG for its help.
        attribute: The name of the function or the group in that module.
        summary: The first line of its help.
    """

    module: str
    attribute: str
    summary: str


class QuickGroup(TyperGroup):
    """A group that leaves its own options alone when the name of a command comes first.

    Typer 0.29 imports pydantic for the value of any option, given or not: 0.1 s more for each `--help`.
    """

    # Typer has its own click or an installed one, depending on its version: its types cannot be named here.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the name of a command."""
        own = self.params, self.add_help_option
        if args and args[0] in self.list_commands(ctx):
            self.params, self.add_help_option = [], False
        try:
            return super().parse_args(ctx, args)
        finally:
            self.params, self.add_help_option = own


class LazyGroup(QuickGroup):
    """A group whose commands are in `listed`."""

    listed: ClassVar[Mapping[str, Listed]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of `listed`."""
        return list(self.listed)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command."""
        if cmd_name not in self.listed:
            return None
        listed = self.listed[cmd_name]
        module = import_module(listed.module)
        found = getattr(module, listed.attribute)
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
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
            commands={name: TyperCommand(name, help=listed.summary) for name, listed in self.listed.items()},
            rich_markup_mode=self.rich_markup_mode,
        )
        listing.format_help(ctx, formatter)
