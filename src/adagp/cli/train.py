"""`adagp train`: one model by one method."""

from typing import TYPE_CHECKING, Annotated

import typer

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
    resumable,
    resume_line,
    schedule_value,
)
from adagp.report import Table
from adagp.schedules import APPROXIMATIONS
from adagp.training import Recipe, RecipeError, methods
from adagp.training.methods import Planning
from adagp.training.run.observers import CompositeObserver
from adagp.training.run.session import CHECKPOINT_SECONDS, Session
from adagp.training.run.tensorboard import TensorBoard

if TYPE_CHECKING:
    from adagp.training import Run

EPILOG = RECIPES_HELP


@command
def train_command(
    preset: Preset = None,
    recipe_file: options.Recipe = None,
    method: Annotated[str | None, typer.Option(help=f"One of {', '.join(methods.names())}.")] = None,
    model: options.Model = None,
    data_name: options.Data = None,
    epochs: options.Epochs = None,
    batch_size: options.Batch = None,
    lr: options.Lr = None,
    schedule: options.Schedule = None,
    topk: options.TopK = None,
    until: options.Until = None,
    seed: Annotated[int | None, typer.Option(help="Decides initial weights and the order of the data.")] = None,
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
    """Train one model by one method, resumably.

    Try:

    - `adagp train`: a small CNN on MNIST-5k by ADA-GP.
    - `adagp train --method bp --epochs 3 --lr 0.01`: plain backpropagation.
    - `adagp train --method topk --schedule 2`: an approximation; `adagp schedule show` draws its schedule.
    - `adagp train --preset cifar10-resnet20-tuned --data-root DIR --set predictor=paper`: any recipe field can be set.
    - `adagp train --out runs/mine --resume`: after Ctrl-C or a crash, continues bit for bit.
    - `torchrun --nproc-per-node 2 -m adagp train --out runs/mine`: two processes share every batch.
    """
    del debug
    from adagp.training import Run, RunFolder, train
    from adagp.training.method_options import unused_options
    from adagp.training.planning import check_layers
    from adagp.training.run.world import join, own_device

    given = assignments(
        set_,
        method=method,
        model=model,
        data=data_name,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        schedule=schedule_value(schedule),
        topk=topk,
        until=until,
        seed=seed,
        train_limit=train_limit,
        test_limit=test_limit,
    )
    fresh = preset is None and recipe_file is None and not given
    if resume and out is not None and fresh:
        recipe = RunFolder(out).recipe()
    else:
        recipe = Recipe.from_mapping(given, base_preset(preset, recipe_file).recipe)
    problems = unused_options([recipe.method], recipe)
    if problems:
        raise RecipeError("; ".join(problems))
    if recipe.method == "short-bp" and recipe.steps is None:
        raise RecipeError(
            "method short-bp gets its length from another method's time: use `adagp compare`, or give --set steps=N"
        )
    check_layers(recipe)
    path = out or default_folder(f"{recipe.data}-{recipe.model}-{recipe.method}-seed{recipe.seed}", resume)
    where = own_device(chosen_device(device))
    again = resume_line("train", path, device, data_root, as_json, tensorboard)
    with join(where) as world, Display(as_json, silent=not world.is_main) as display:
        dataset = data.load_any(recipe.data, data_root)
        folder = RunFolder(path)
        run = Run(recipe, dataset, device=where, world=world)
        folder.prepare(run, resume=resume)
        if resume and folder.restore(run):
            display.on_message(f"resuming {run.name} at batch {run.step_index} of {run.total_steps}")
            if reason := folder.diverged():
                display.on_message(f"it stopped before because it diverged: {reason}")
        display.on_message(_schedule_line(run))
        events = [TensorBoard(path / "tensorboard")] if tensorboard and world.is_main else []
        observer = CompositeObserver(display, *events)
        with resumable(display, again) as interrupt:
            result = train(run, folder, Session(observer, interrupt, checkpoint_seconds))
    if not world.is_main:
        return
    if as_json:
        print_json({"folder": str(path), "recipe": recipe.to_dict(), **result})
        return
    shown = [metric for metric in run.task.metrics if f"test_{metric.name}" in result]
    print_table(
        Table(
            title=run.name,
            columns=(
                *(metric.heading for metric in shown),
                "test loss",
                "train s",
                "median ms per batch",
                "updates applied",
            ),
            rows=[
                (
                    *(metric.cell(result[f"test_{metric.name}"]) for metric in shown),
                    f"{result['test_loss']:.4f}",
                    f"{result['train_seconds']:.1f}",
                    ", ".join(f"{kind} {ms:.1f}" for kind, ms in result["median_ms"].items()),
                    ", ".join(f"{source} {count}" for source, count in result["counts"].items()),
                )
            ],
            text_columns=0,
        )
    )
    _print_reasons(result["reasons"])
    print(f"written to {path}")


def _schedule_line(run: "Run") -> str:
    from adagp.training.planning import DEFAULT_APPROXIMATION

    planning, recipe = methods.get(run.recipe.method).planning, run.recipe
    text = f"{run.name}: {run.total_steps} batches"
    if planning is Planning.BACKPROP:
        return f"{text}, all by backpropagation"
    if planning is Planning.TABLE:
        return f"{text}, by the table given"
    if planning is Planning.APPROXIMATION:
        return f"{text}, {recipe.method} in {APPROXIMATIONS[recipe.schedule or DEFAULT_APPROXIMATION]}"
    warmup, rung = run.ladder.warmup_steps / run.steps_per_epoch, run.ladder.rung_steps / run.steps_per_epoch
    text = f"{text}, warm-up {warmup:.2g} epochs"
    if planning is Planning.ADAPTIVE:
        return f"{text}, then as the measured quality allows"
    return f"{text}, then 4:1, 3:1, 2:1 for {rung:.2g} epochs each, then 1:1"


def _print_reasons(reasons: list[str], most: int = 10) -> None:
    """The last changes of an adaptive schedule; metrics.json has them all."""
    if reasons:
        left_out = f", the last {most} of {len(reasons)}" if len(reasons) > most else ""
        print("\n".join([f"changes of k:m{left_out}:", *(f"  {reason}" for reason in reasons[-most:])]))
