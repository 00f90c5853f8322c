"""Every command of `adagp`: its module and its summary."""

import io
import sys

import typer

from adagp.cli.groups import MARKUP, LazyGroup, Listed

COMMANDS = {
    "advise": Listed(
        "adagp.cli.advise",
        "advise_command",
        "Measure what would make a training faster or smaller on this machine.",
    ),
    "train": Listed("adagp.cli.train", "train_command", "Train one model by one method, resumably."),
    "compare": Listed(
        "adagp.cli.compare",
        "compare_command",
        "Train several methods over several seeds, interleaved, and judge them.",
    ),
    "leaderboard": Listed(
        "adagp.cli.leaderboard",
        "leaderboard_command",
        "Show which method reaches plain backpropagation's score soonest, from run folders.",
    ),
    "schedule": Listed(
        "adagp.cli.schedule",
        "schedule_app",
        "Show which batches a method trains by backpropagation and which it predicts.",
    ),
    "reproduce": Listed(
        "adagp.cli.reproduce", "reproduce_app", "Reproduce the papers' tables and figures, ours beside theirs."
    ),
    "simulate": Listed(
        "adagp.cli.simulate",
        "simulate_app",
        "Compute cycles, speed-up and memory energy of training on a 180-PE accelerator, plain and with ADA-GP.",
    ),
    "pipeline": Listed(
        "adagp.cli.pipeline",
        "pipeline_command",
        "Simulate a pipeline in any sequence of phases: its steps, and which device does what when.",
    ),
    "hardware": Listed(
        "adagp.cli.hardware",
        "hardware_app",
        "Check, synthesise and export the accelerator in RTL.",
    ),
    "models": Listed(
        "adagp.cli.models",
        "models_command",
        "List the networks in all their forms, their size, and how many layers predictions can cover.",
    ),
    "data": Listed(
        "adagp.cli.data",
        "data_command",
        "List the data sets with their task and size, and where the missing ones are expected.",
    ),
}


class _Commands(LazyGroup):
    listed = COMMANDS


app = typer.Typer(
    name="adagp",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train PyTorch models with adaptive gradient prediction, and see honestly what it gives.

Start with `adagp compare --preset demo`: two minutes, no download, every method side by side.
""",
)


@app.callback()
def _root() -> None:
    pass


def run() -> None:
    """Read the command line and run it; characters that the terminal cannot show become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()
