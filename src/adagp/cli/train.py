"""`adagp train`: one model by one method."""

from typing import TYPE_CHECKING, Annotated

import typer

from adagp import data, models
from adagp.cli import options
from adagp.cli.advising import SECONDS, with_method_of_schedule, with_plan
from adagp.cli.common import command, print_json, print_table
from adagp.cli.display import Display
from adagp.cli.session import RecipeOptions, RunOptions, chosen_device, default_folder, resumable
from adagp.schedules import APPROXIMATIONS
from adagp.training import Recipe, RecipeError, methods
from adagp.training.methods import Planning
from adagp.training.recipe import parse_levels
from adagp.training.run.observers import CompositeObserver
from adagp.training.run.session import Session
from adagp.training.run.tensorboard import TensorBoard

if TYPE_CHECKING:
    from pathlib import Path

    from adagp.training import Run

EPILOG = options.recipes_help()


@command
@options.spread
def train_command(
    *,
    method: Annotated[str | None, typer.Option(help=f"One of {', '.join(methods.names())}.")] = None,
    chosen: RecipeOptions,
    seed: Annotated[int | None, typer.Option(help="Decides initial weights and the order of the data.")] = None,
    out: options.Out = None,
    advise_seconds: options.AdviseSeconds = SECONDS,
    tensorboard: options.TensorBoard = False,
    run_options: RunOptions,
) -> None:
    """Train one model by one method, resumably.

    Try:

    - `adagp train`: a small CNN on MNIST-5k by ADA-GP.
    - `adagp train --method bp --epochs 3 --lr 0.01`: plain backpropagation.
    - `adagp train --method progressive --model resnet14`: small images first, full size at the end.
    - `adagp train --method local --model resnet20 --set parts=2`: each half learns from a head of its own.
    - `adagp train --method sampled --set rate=0.5`: unbiased weight gradients from half of the positions.
    - `adagp train --method topk --schedule 2`: an approximation; `adagp schedule show` draws its schedule.
    - `adagp train --schedule advise`: measures first which sources pay in which layers, and uses them.
    - `adagp train --preset cifar10-resnet20-tuned --data-root DIR --set predictor=paper`: any recipe field can be set.
    - `adagp train --out runs/mine --resume`: after Ctrl-C or a crash, continues bit for bit.
    - `torchrun --nproc-per-node 2 -m adagp train --out runs/mine`: two processes share every batch.
    """
    from adagp.report.comparison import run_table
    from adagp.training import Run, RunFolder, train
    from adagp.training.planning import with_exact_table
    from adagp.training.run.world import join, own_device

    resume, as_json = run_options.resume, run_options.as_json
    recipe = _recipe(chosen, method, seed, out if resume else None)
    path = out or default_folder(f"{recipe.data}-{recipe.model}-{recipe.method}-seed{recipe.seed}", resume)
    if recipe.method == "advised" and recipe.schedule is None:
        if resume:
            recipe = recipe.replace(schedule=RunFolder(path).recipe().schedule)
        else:
            _check(with_exact_table(recipe))
            RunFolder(path).check_free()
            recipe = with_plan(recipe, run_options.data_root, run_options.device, advise_seconds)
    _check(recipe)
    where = own_device(chosen_device(run_options.device))
    again = run_options.resume_line("train", path, tensorboard=tensorboard)
    with join(where) as world, Display(as_json, silent=not world.is_main) as display:
        dataset = data.load_any(recipe.data, run_options.data_root)
        folder = RunFolder(path)
        run = Run(recipe, dataset, device=where, world=world)
        folder.prepare(run, resume=resume)
        if resume and folder.restore(run):
            display.on_message(f"resuming {run.name} at batch {run.step_index} of {run.total_steps}")
            if reason := folder.diverged():
                display.on_message(f"it stopped before because it diverged: {reason}")
        display.on_message(_schedule_line(run))
        events = [TensorBoard(path / "tensorboard")] if tensorboard and world.is_main else []
        with resumable(display, again) as interrupt:
            session = Session(CompositeObserver(display, *events), interrupt, run_options.checkpoint_seconds)
            result = train(run, folder, session)
    if not world.is_main:
        return
    if as_json:
        print_json({"folder": str(path), "recipe": recipe.to_dict(), **result})
        return
    print_table(run_table(run.name, run.task.metrics, result))
    _print_reasons(result["reasons"])
    print(f"written to {path}")


def _recipe(chosen: RecipeOptions, method: str | None, seed: int | None, resumed: "Path | None") -> Recipe:
    """The recipe of the options; if no option sets one, the recipe of the resumed folder."""
    from adagp.training import RunFolder

    given = chosen.fields(method=method, seed=seed)
    if resumed is not None and not given and not chosen.names_base:
        return RunFolder(resumed).recipe()
    return Recipe.from_mapping(with_method_of_schedule(given), chosen.base().recipe)


def _check(recipe: Recipe) -> None:
    """Refuse what cannot be trained, before anything is."""
    from adagp.training.method_options import unused_options
    from adagp.training.planning import check_layers

    if problems := unused_options([recipe.method], recipe):
        raise RecipeError("; ".join(problems))
    if recipe.method == "short-bp" and recipe.steps is None:
        raise RecipeError(
            "method short-bp gets its length from another method's time: use `adagp compare`, or give --set steps=N"
        )
    check_layers(recipe)


def _schedule_line(run: "Run") -> str:
    from adagp.training.planning import DEFAULT_APPROXIMATION

    planning, recipe = methods.get(run.recipe.method).planning, run.recipe
    text = f"{run.name}: {run.total_steps} batches"
    if planning is Planning.BACKPROP:
        return f"{text}, all by backpropagation"
    if planning is Planning.TABLE:
        return f"{text}, by the table {'found' if recipe.method == 'advised' else 'given'}"
    if planning is Planning.LOCAL:
        where = f"{recipe.parts} parts" if recipe.cuts is None else f"parts that end at {recipe.cuts}"
        return f"{text}, in {where}, each with a loss of its own"
    if planning is Planning.PROGRESSIVE:
        return f"{text}, {_samples(recipe)} at {_levels(recipe)}: {_saving(run)}"
    if planning is Planning.GROWING:
        smallest = parse_levels(recipe.levels)[0][0]
        return f"{text}, {_samples(recipe)} grow from {smallest:g} of their size when that pays"
    if planning is Planning.APPROXIMATION:
        return f"{text}, {recipe.method} in {APPROXIMATIONS[recipe.schedule or DEFAULT_APPROXIMATION]}"
    if planning is Planning.SAMPLED:
        return f"{text}, weight gradients from {100 * recipe.rate:g} % of the positions"
    if planning is Planning.ECONOMICAL:
        return f"{text}, layers sampled where a measurement says that it pays"
    warmup, rung = run.ladder.warmup_steps / run.steps_per_epoch, run.ladder.rung_steps / run.steps_per_epoch
    text = f"{text}, warm-up {warmup:.2g} epochs"
    if planning is Planning.ADAPTIVE:
        return f"{text}, then as the measured quality allows"
    sizes = f" of {_samples(recipe)} at {recipe.scale:g} of their size and full ones"
    cheap = sizes if recipe.method == "coarse" else ""
    text = f"{text}, then 4:1, 3:1, 2:1{cheap} for {rung:.2g} epochs each, then 1:1"
    return f"{text}: {_saving(run)}" if cheap else text


def _samples(recipe: Recipe) -> str:
    """What shrinks in coarse batches."""
    return "contexts" if models.task(recipe.model) == "next-token" else "images"


def _levels(recipe: Recipe) -> str:
    levels = parse_levels(recipe.levels)
    sizes = ["full size" if scale == 1 else f"{scale:g} of their size" for scale, _ in levels]
    parts = (f"{size} for {100 * share:.0f} %" for size, (_, share) in zip(sizes, levels, strict=True))
    return f"{', then '.join(parts)} of the batches"


def _saving(run: "Run") -> str:
    """The cost of the coarse batches and the full ones together, by their pixels or tokens."""
    from adagp.training.planning import shrinking_dimensions

    dimensions = shrinking_dimensions(run.recipe.model)
    work = sum(run.schedule(step).scale ** dimensions for step in range(run.total_steps)) / run.total_steps
    return f"{100 * work:.0f} % of the work of full size, about {1 / work:.2f} x as fast"


def _print_reasons(reasons: list[str], most: int = 10) -> None:
    """Print the last changes of an adaptive schedule; metrics.json has them all."""
    if reasons:
        left_out = f", the last {most} of {len(reasons)}" if len(reasons) > most else ""
        print("\n".join([f"changes of the schedule{left_out}:", *(f"  {reason}" for reason in reasons[-most:])]))
