"""`adagp compare`: several methods over several seeds, interleaved, and the verdict."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from adagp import data
from adagp.cli import options
from adagp.cli.advising import SECONDS, with_plan
from adagp.cli.budget import BUDGET, BudgetChoice, chosen_protocol, compare_budget
from adagp.cli.common import command, print_json, print_table
from adagp.cli.display import Display
from adagp.cli.session import RecipeOptions, RunOptions, chosen_device, default_folder, numbers, resumable
from adagp.extras import require
from adagp.training import Recipe, RecipeError
from adagp.training.run.observers import CompositeObserver
from adagp.training.run.session import Session
from adagp.training.run.tensorboard import TensorBoard

if TYPE_CHECKING:
    from pathlib import Path

    from adagp.training import Settings

EPILOG = options.recipes_help()


@command
@options.spread
def compare_command(
    *,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; the list is below.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated whole numbers, for example 0,1,2.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="The same epochs for all (`epochs`, default), or the same tuned reference seconds (`budget`)."
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Give every method this many training seconds instead of the same epochs.")
    ] = None,
    budget_options: BudgetChoice,
    chosen: RecipeOptions,
    out: options.Out = None,
    advise_seconds: options.AdviseSeconds = SECONDS,
    tensorboard: options.TensorBoard = False,
    run_options: RunOptions,
) -> None:
    """Train several methods over several seeds, interleaved, and judge them.

    All runs of a comparison take turns in one process, so whatever slows the machine down slows down all of them.
    Costs of a batch are measured first; `short-bp` gets as many batches as fit into the time of the slowest
    method judged.

    With `--protocol budget` every method gets the same reference seconds: batches x the cost of a batch, measured once
    and side by side, so that a busy machine changes nothing. The budget is the time that `bp` takes for the
    recipe's epochs; runs also get smaller shares of it. The learning rate of every method, and the batch size of
    `bp`, are chosen on validation items. The target is what `bp` reaches on average in the middle share. Any process
    with the same `--out` and `--resume` shares the work. `--methods` and `--seeds` then add to what is there. `adagp
    leaderboard` shows it at any time.

    Try:

    - `adagp compare --preset demo`: about two minutes, no download.
    - `adagp compare --preset demo --protocol budget --methods bp,skip --seeds 0,1,2 --out runs/board`: tuned, and in
      the same time.
    - `adagp compare --out runs/board --resume --methods averaging`: adds a method to it.
    - `adagp compare --methods bp,adagp,skip,short-bp --seeds 0,1,2 --data digits --epochs 9`: your own choice.
    - `adagp compare --methods bp,advised,short-bp`: the plan that `adagp advise` finds to pay, against the same time.
    - `adagp compare --preset cifar10-resnet20-tuned --data-root DIR --budget 600`: the same ten minutes for each run.
    - `adagp compare --preset demo --resume`: after Ctrl-C or a crash.
    """
    from adagp.report import comparison_table, write_report
    from adagp.training import compare
    from adagp.training.run.world import refuse_torchrun

    refuse_torchrun("compare")
    if chosen_protocol(protocol, out if run_options.resume else None) == BUDGET:
        if budget is not None or tensorboard:
            raise RecipeError("--protocol budget takes neither --budget nor --tensorboard: epochs set the budget")
        compare_budget(chosen, methods, seeds, budget_options, out, run_options)
        return
    if budget_options.given:
        raise RecipeError(f"--{budget_options.given[0]} is for --protocol budget: add it, or leave the option out")
    resume, as_json = run_options.resume, run_options.as_json
    plan = partial(with_plan, data_root=run_options.data_root, device=run_options.device, seconds=advise_seconds)
    settings = _settings(chosen, methods, seeds, budget, out if resume else None, plan)
    stem = chosen.base().name if chosen.names_base else f"{settings.recipe.data}-{settings.recipe.model}"
    path = out or default_folder(f"compare-{stem}", resume)
    where = chosen_device(run_options.device)
    require("matplotlib")  # for the report, which comes last
    again = run_options.resume_line("compare", path, tensorboard=tensorboard)
    with Display(as_json) as display:
        dataset = data.load_any(settings.recipe.data, run_options.data_root)
        observer = CompositeObserver(display, TensorBoard(path / "tensorboard")) if tensorboard else display
        with resumable(display, again) as interrupt:
            comparison = compare(
                settings,
                dataset,
                path,
                device=where,
                session=Session(observer, interrupt, run_options.checkpoint_seconds),
                resume=resume,
            )
        png, html = write_report(comparison, path)
    if as_json:
        print_json({"folder": str(path), "figure": str(png), "report": str(html), **comparison.to_dict()})
        return
    print_table(comparison_table(comparison))
    console = Console(highlight=False)
    console.print(f"\n[bold]{escape(comparison.verdict)}[/bold]\n")
    print(f"picture: {png}\nreport:  {html}")


def _settings(
    chosen: RecipeOptions,
    methods: str | None,
    seeds: str | None,
    budget: float | None,
    resumed: "Path | None",
    plan: Callable[[Recipe], Recipe],
) -> "Settings":
    """The settings of the options, which start from those of the resumed folder if no other recipe is named.

    Options that differ from the folder's are refused later, by name. `plan` finds one for method `advised`.
    """
    from adagp.training import Settings
    from adagp.training.comparison.settings import stored_settings
    from adagp.training.planning import check_layers, with_exact_table

    given = chosen.fields()
    for field, remedy in (("method", "--methods"), ("seed", "--seeds")):
        if field in given:
            raise RecipeError(f"{field} is set for each run of a comparison: choose with {remedy}")
    if budget is not None and "epochs" in given:
        raise RecipeError("epochs and --budget both set the length: give one of them")
    base = chosen.base()
    held = stored_settings(resumed) if resumed is not None and not chosen.names_base else None
    names = tuple(part.strip() for part in methods.split(",")) if methods else (held or base).methods
    recipe = Recipe.from_mapping(given, held.recipe if held else base.recipe).replace(method="bp", seed=0)
    measures = "advised" in names and recipe.schedule is None
    settings = Settings(
        recipe=with_exact_table(recipe) if measures else recipe,
        methods=names,
        seeds=numbers("seeds", seeds) if seeds else (held or base).seeds,
        budget_seconds=held.budget_seconds if held and budget is None else budget,
    )
    for name in settings.effective_methods:
        check_layers(settings.recipe.replace(method=name))
    return replace(settings, recipe=plan(recipe)) if measures else settings
