"""`adagp compare`: several methods over several seeds, interleaved, and the verdict."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from adagp import data
from adagp.cli import options
from adagp.cli.common import command, print_json, print_table
from adagp.cli.display import Display
from adagp.cli.recipes import RECIPES_HELP, Preset
from adagp.cli.runs import (
    assignments,
    base_preset,
    chosen_device,
    default_folder,
    numbers,
    resumable,
    resume_line,
    schedule_value,
)
from adagp.extras import require
from adagp.training import Recipe, RecipeError
from adagp.training.run.observers import CompositeObserver
from adagp.training.run.session import CHECKPOINT_SECONDS, Session
from adagp.training.run.tensorboard import TensorBoard

EPILOG = RECIPES_HELP


@command
def compare_command(
    preset: Preset = None,
    recipe_file: options.Recipe = None,
    methods_: Annotated[str | None, typer.Option("--methods", help="Comma-separated; see below.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated whole numbers, for example 0,1,2.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Give every method this many training seconds instead of the same epochs.")
    ] = None,
    model: options.Model = None,
    data_name: options.Data = None,
    epochs: options.Epochs = None,
    batch_size: options.Batch = None,
    lr: options.Lr = None,
    schedule: options.Schedule = None,
    topk: options.TopK = None,
    until: options.Until = None,
    train_limit: options.TrainLimit = None,
    test_limit: options.TestLimit = None,
    set_: options.Set = None,
    out: options.Out = None,
    resume: options.Resume = False,
    device: options.Device = None,
    data_root: options.Root = None,
    checkpoint_seconds: options.Checkpoint = CHECKPOINT_SECONDS,
    tensorboard: options.TensorBoard = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train several methods over several seeds, interleaved, and judge them.

    All runs of a comparison take turns in one process, so whatever slows the machine down slows down all of them.
    Costs of a batch are measured first; `short-bp` gets as many batches as fit into the time of the method judged.

    Try:

    - `adagp compare --preset demo`: about two minutes, no download.
    - `adagp compare --methods bp,adagp,skip,short-bp --seeds 0,1,2 --data digits --epochs 9`: your own choice.
    - `adagp compare --preset cifar10-resnet20-tuned --data-root DIR --budget 600`: the same ten minutes for each run.
    - `adagp compare --preset demo --resume`: after Ctrl-C or a crash.
    """
    del debug
    from adagp.report import comparison_table, write_report
    from adagp.training import Settings, compare
    from adagp.training.comparison.settings import stored_settings
    from adagp.training.planning import check_layers
    from adagp.training.run.world import refuse_torchrun

    refuse_torchrun("compare")
    given = assignments(
        set_,
        model=model,
        data=data_name,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        schedule=schedule_value(schedule),
        topk=topk,
        until=until,
        train_limit=train_limit,
        test_limit=test_limit,
    )
    for field, remedy in (("method", "--methods"), ("seed", "--seeds")):
        if field in given:
            raise RecipeError(f"{field} is set for each run of a comparison: choose with {remedy}")
    if budget is not None and "epochs" in given:
        raise RecipeError("epochs and --budget both set the length: give one of them")
    base = base_preset(preset, recipe_file)
    # What is resumed is what the folder holds, but for options that are given: they are then refused by name.
    held = stored_settings(out) if resume and out is not None and preset is None and recipe_file is None else None
    settings = Settings(
        recipe=Recipe.from_mapping(given, held.recipe if held else base.recipe).replace(method="bp", seed=0),
        methods=tuple(part.strip() for part in methods_.split(",")) if methods_ else (held or base).methods,
        seeds=numbers("seeds", seeds) if seeds else (held or base).seeds,
        budget_seconds=held.budget_seconds if held and budget is None else budget,
    )
    for name in settings.effective_methods:
        check_layers(settings.recipe.replace(method=name))
    stem = base.name if preset or recipe_file else f"{settings.recipe.data}-{settings.recipe.model}"
    path = out or default_folder(f"compare-{stem}", resume)
    where = chosen_device(device)
    require("matplotlib")  # for the report, which comes last
    again = resume_line("compare", path, device, data_root, as_json, tensorboard)
    with Display(as_json) as display:
        dataset = data.load_any(settings.recipe.data, data_root)
        observer = CompositeObserver(display, TensorBoard(path / "tensorboard")) if tensorboard else display
        with resumable(display, again) as interrupt:
            comparison = compare(
                settings,
                dataset,
                path,
                device=where,
                session=Session(observer, interrupt, checkpoint_seconds),
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
