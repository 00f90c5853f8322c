"""`adagp schedule`: which batches a method predicts."""

from typing import Annotated

import typer

from adagp.cli import options
from adagp.cli.common import command, print_json, print_table
from adagp.report import schedule_table
from adagp.training import Recipe, RecipeError, methods


@command
def schedule_command(
    method: Annotated[str, typer.Option(help=f"One of {', '.join(methods.names())}.")] = "adagp",
    epochs: Annotated[int, typer.Option(min=1, help="Length of the run.")] = 90,
    steps_per_epoch: Annotated[int, typer.Option(min=1, help="Batches in an epoch.")] = 390,
    warmup_epochs: Annotated[float | None, typer.Option(help="Default: the paper's 10, shortened to fit.")] = None,
    rung_epochs: Annotated[float | None, typer.Option(help="Default: the paper's 4, shortened to fit.")] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show which batches a method trains by backpropagation and which it predicts.

    Try:

    - `adagp schedule`: the paper's ladder over 90 epochs.
    - `adagp schedule --epochs 6 --steps-per-epoch 125`: the ladder compressed to a short run.
    """
    del debug
    recipe = Recipe.from_mapping(
        {"method": method, "epochs": epochs, "warmup_epochs": warmup_epochs, "rung_epochs": rung_epochs}
    )
    chosen = methods.get(method)
    if chosen.adaptive:
        raise RecipeError(
            "the adaptive schedule depends on what it measures: train with it: "
            "`adagp train --method adaptive` prints its reasons and keeps them in metrics.json"
        )
    ladder = recipe.ladder(epochs * steps_per_epoch, steps_per_epoch)
    schedule = chosen.schedule(ladder.warmup_steps, ladder.rung_steps, steps_per_epoch)
    table = schedule_table(f"{method}: {chosen.summary}", schedule, epochs, steps_per_epoch)
    if as_json:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        print_json({"method": method, "epochs": rows, "notes": list(table.notes)})
    else:
        print_table(table)
