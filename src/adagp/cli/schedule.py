"""`adagp schedule`: which batches a method predicts; `adagp schedule show` looks into the layers."""

from typing import Annotated

import typer

from adagp.cli import options
from adagp.cli.common import command, print_json, print_table
from adagp.cli.groups import MARKUP, QuickGroup
from adagp.cli.schedule_show import SCHEDULES_HELP, show_command
from adagp.training import Recipe, RecipeError, methods
from adagp.training.methods import Planning

STEPS_LIMIT = 20_000_000

schedule_app = typer.Typer(cls=QuickGroup, rich_markup_mode=MARKUP)


@schedule_app.callback(invoke_without_command=True)
@command
def schedule_command(
    context: typer.Context,
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
    - `adagp schedule --method progressive`: which batches have smaller images.
    - `adagp schedule show --schedule 2 --source topk`: a schedule layer by layer; see `adagp schedule show --help`.
    """
    del debug
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    from adagp.report.schedule import schedule_table
    from adagp.training.planning import build_schedule, outline

    recipe = Recipe.from_mapping(
        {"method": method, "epochs": epochs, "warmup_epochs": warmup_epochs, "rung_epochs": rung_epochs}
    )
    if epochs * steps_per_epoch > STEPS_LIMIT:
        raise RecipeError(
            f"epochs x steps_per_epoch = {epochs} x {steps_per_epoch} is too large: at most {STEPS_LIMIT:,} batches "
            "are looked at"
        )
    chosen = methods.get(method)
    if chosen.planning in (Planning.ADAPTIVE, Planning.GROWING, Planning.ECONOMICAL):
        raise RecipeError(
            f"the {method} schedule depends on what it measures: train with it: "
            f"`adagp train --method {method}` prints its reasons and keeps them in metrics.json"
        )
    if chosen.planning in (Planning.APPROXIMATION, Planning.PREFIX, Planning.SAMPLED, Planning.TABLE):
        raise RecipeError(f"method {method} plans layer by layer: see `adagp schedule show --help`")
    if chosen.planning is Planning.LOCAL:
        raise RecipeError(f"method {method} has the same plan in every batch: every layer is local")
    schedule = build_schedule(recipe, outline(recipe.model), epochs * steps_per_epoch, steps_per_epoch)
    table = schedule_table(f"{method}: {chosen.summary}", schedule, epochs, steps_per_epoch)
    if as_json:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        print_json({"method": method, "epochs": rows, "notes": list(table.notes)})
    else:
        print_table(table)


schedule_app.command("show", epilog=SCHEDULES_HELP)(show_command)


def _refuse_options_before(context: typer.Context) -> None:
    """Refuse options between `schedule` and its command, which belong to neither."""
    for name in context.params:
        given = context.get_parameter_source(name)
        if given is not None and given.name == "COMMANDLINE":
            raise RecipeError(f"{name} stands before '{context.invoked_subcommand}' and would be ignored: remove it")
