"""The `adagp` command: parses, calls, prints. Progress and errors go to stderr, results to stdout."""

import typer

from adagp.cli.compare import compare_command
from adagp.cli.data import data_command
from adagp.cli.lists import models_command
from adagp.cli.options import METHODS_HELP, PRESETS_HELP
from adagp.cli.pipeline import SCHEMES_HELP, pipeline_command
from adagp.cli.reproduce import reproduce_app
from adagp.cli.schedule import schedule_app
from adagp.cli.simulate import LAYER_HELP, simulate_command
from adagp.cli.train import train_command

app = typer.Typer(
    name="adagp",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train PyTorch models with adaptive gradient prediction, and see honestly what it gives.

Start with `adagp compare --preset demo`: two minutes, no download, every method side by side.
""",
)
app.command("train", epilog=f"{METHODS_HELP}\n\n{PRESETS_HELP}")(train_command)
app.command("compare", epilog=f"{METHODS_HELP}\n\n{PRESETS_HELP}")(compare_command)
app.add_typer(schedule_app, name="schedule")
app.add_typer(reproduce_app, name="reproduce")
app.command("simulate", epilog=LAYER_HELP)(simulate_command)
app.command("pipeline", epilog=SCHEMES_HELP)(pipeline_command)
app.command("models")(models_command)
app.command("data")(data_command)


def main() -> None:
    """Entry point of the `adagp` command."""
    app()
