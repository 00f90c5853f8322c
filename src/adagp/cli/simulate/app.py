"""The modes of `adagp simulate`, and how a command line chooses one."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from adagp.cli import machine_options as machines
from adagp.cli.groups import MARKUP, QuickGroup

MODES = ("network", "layer", "sweep", "search")


class _Modes(QuickGroup):
    """Chooses the mode by an option if no mode is named: `adagp simulate --layer ...` is the older form."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(MODES)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*_unnamed_mode(args), *args])


def _unnamed_mode(args: Sequence[str]) -> list[str]:
    if args and (args[0] in ("-h", "--help") or not args[0].startswith("-")):
        return []
    given = {arg.partition("=")[0] for arg in args}
    return [next((mode for mode in ("layer", "sweep", "search") if f"--{mode}" in given), "network")]


class Mode(TyperCommand):
    """Refuses the options of the other modes in one line that names their mode."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            modes = {name: _options(mode) for name, mode in ctx.parent.command.commands.items()}
            owners = [name for name, known in modes.items() if option in known]
            if not owners or self.name in owners:
                raise
            what = "a single layer" if self.name == "layer" else f"'adagp simulate {self.name}'"
            remedy = f"leave it out, or use 'adagp simulate {owners[0]}'"
            print(f"adagp: error: {option}: has no effect on {what}; {remedy}", file=sys.stderr)
            raise typer.Exit(2) from None


def _options(mode: Any) -> set[str]:
    return {option for parameter in mode.params for option in (*parameter.opts, *parameter.secondary_opts)}


simulate_app = typer.Typer(
    cls=_Modes,
    rich_markup_mode=MARKUP,
    help="""Compute cycles, speed-up and memory energy of training on a 180-PE accelerator, plain and with ADA-GP.

Formulas, not a simulation of every cycle: a second each. Stalls on memory are counted only with `--stalls`.

Try:

- `adagp simulate network --model vgg13 --data cifar10`: plain training and ADA-GP's three designs.
- `adagp simulate layer c_in=64,c_out=64,out=32x32,kernel=3`: the three passes of one layer.
- `adagp simulate sweep batch=16,64,256 --model vgg13`: what moves the figures.
- `adagp simulate search --model mobilenet_v2 --pes 256`: the best array, and what ADA-GP gives there.

If no mode is named, `--layer`, `--sweep` or `--search` chooses it; the default is `network`.
""",
    epilog=machines.MACHINE_HELP,
)
