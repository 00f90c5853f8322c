"""`adagp advise`: what would make a training faster or smaller on this machine."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from adagp.cli import options
from adagp.cli.advising import AdviceBar
from adagp.cli.common import InputError, check_folders, command, print_files, print_json, print_table, write_text
from adagp.cli.session import RecipeOptions, chosen_device
from adagp.extras import require
from adagp.training import Recipe
from adagp.user_code import prints_on_stderr

if TYPE_CHECKING:
    from adagp.accelerator.pipeline.measured import PipelineFinding
    from adagp.advice import Advice
    from adagp.advice.budget import Progress as Report

LEAST_SECONDS = 1.0


@dataclass(frozen=True)
class TrainingOptions:
    """A training of the zoo, or of the user."""

    preset: options.Preset = None
    recipe_file: options.Recipe = None
    model: options.Model = None
    data_name: options.Data = None
    batch_size: options.Batch = None
    lr: options.Lr = None
    set_: options.Set = None
    module: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:BUILD",
            help="A training of yours: a function that returns model, optimizer, loss, and a batch or loader.",
        ),
    ] = None

    def title(self) -> str:
        """The training in a few words."""
        if self.module is not None:
            return self.module
        recipe = self.recipe()
        return f"{recipe.model} on {recipe.data}"

    def recipe(self) -> Recipe:
        """The recipe of a training of the zoo."""
        chosen = self.recipe_options()
        return Recipe.from_mapping(chosen.fields(), chosen.base().recipe)

    def recipe_options(self) -> RecipeOptions:
        """The same, as commands that train read them."""
        return RecipeOptions(
            preset=self.preset,
            recipe_file=self.recipe_file,
            model=self.model,
            data_name=self.data_name,
            batch_size=self.batch_size,
            lr=self.lr,
            set_=self.set_,
        )


@command
@options.spread
def advise_command(
    *,
    chosen: TrainingOptions,
    seconds: Annotated[float, typer.Option(help="About how long to measure; more narrows the intervals.")] = 60.0,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Also measure torch.compile, which may take a minute or more to start.")
    ] = False,
    plan: Annotated[
        Path | None, typer.Option(help="Write the plan that pays into this file, a table for `train --schedule`.")
    ] = None,
    stages: Annotated[
        int | None, typer.Option(min=2, help="Also compute the bubbles of a pipeline of this number of stages.")
    ] = None,
    microbatches: Annotated[int, typer.Option(min=1, help="Micro-batches in a batch of that pipeline.")] = 4,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the pictures: time by layer, error against seconds.")
    ] = None,
    device: options.Device = None,
    data_root: options.Root = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Measure what would make a training faster or smaller on this machine.

    Every option is measured in turn with the training as it is, for about a minute. An option is said to pay only if
    the whole 99 % interval of its speed-up says so.

    Try:

    - `adagp advise --model resnet20 --data cifar10 --data-root DIR`: a network of the zoo.
    - `adagp advise --module train.py:build`: a training of yours. `build()` returns the model, the optimizer, the loss
      and an example batch or a loader.
    - `adagp advise --seconds 300 --compile`: narrower intervals, and torch.compile.
    - `adagp advise --html advice.html`: a page with pictures.
    - `torchrun --nproc-per-node 2 -m adagp advise ...`: also the bytes and the time of messages between the ranks.
    - `adagp advise --stages 4 --microbatches 8`: also the bubbles, were the model cut into a pipeline.
    - `adagp advise --plan mine.txt`, then `adagp train --schedule mine.txt`: use the plan.
    """
    del debug
    check_folders(plan, html)
    if html is not None:
        require("matplotlib")  # before the measurement
    if not seconds >= LEAST_SECONDS or seconds == float("inf"):
        raise InputError(f"seconds = {seconds:g}: give at least {LEAST_SECONDS:g}, such as 60")
    with AdviceBar(seconds) as bar, prints_on_stderr():
        advice = _advise(chosen, seconds, compile_, device, data_root, bar.report)
    if advice is None:
        return
    if plan is not None and advice.plan is not None:
        write_text(plan, advice.plan.table)
    pipelines, refused = _pipelines(advice, stages, microbatches)
    if html is not None:
        from adagp.report.advice import page

        write_text(html, page(advice, chosen.title(), pipelines))
    if as_json:
        files = {"plan_file": plan if advice.plan else None, "html_file": html}
        found = {"pipelines": [one.to_dict() for one in pipelines], "pipeline_refused": refused}
        paths = {name: None if path is None else str(path) for name, path in files.items()}
        print_json({**advice.to_dict(), **found, **paths})
    else:
        _print(advice, pipelines)
        if refused:
            print(f"No pipeline: {refused}.")
        print_files(plan=plan if advice.plan else None, page=html)
    if plan is not None and advice.plan is None:
        raise InputError(f"plan: there is none to write: {advice.why_no_plan}")


def _advise(
    chosen: TrainingOptions,
    seconds: float,
    compiles: bool,
    device: str | None,
    data_root: Path | None,
    progress: "Report",
) -> "Advice | None":
    """Advice for the training of the options; None on all ranks but the first."""
    from adagp import data
    from adagp.training.advise_worker import recipe_command
    from adagp.training.advising import advise_recipe
    from adagp.training.run.world import join, own_device

    recipe_options = chosen.recipe_options()
    if chosen.module is not None:
        if recipe_options.fields() or recipe_options.names_base or data_root is not None:
            raise InputError("module: has its own model, data and rates; leave all other options of a training out")
        if device is not None:
            raise InputError("module: decides the device itself; move the model there in its build function")
        return _advise_module(chosen.module, seconds, compiles, progress)
    recipe = chosen.recipe()
    dataset = data.load_any(recipe.data, data_root)
    where = own_device(chosen_device(device))
    with join(where) as world:
        advice = advise_recipe(
            recipe,
            dataset,
            where,
            world,
            seconds=seconds,
            compile=compiles,
            worker=recipe_command(recipe, data_root) if world.size == 1 else None,
            progress=progress if world.is_main else lambda share, text: None,
        )
    return advice if world.is_main else None


def _advise_module(module: str, seconds: float, compiles: bool, progress: "Report") -> "Advice | None":
    """Advice for a training in the user's file, whose `build` joins the ranks; None on all ranks but the first."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from adagp.advice import advise
    from adagp.advice.user_file import load_training
    from adagp.training.advise_worker import module_command

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    own = load_training(module)
    if ranks > 1 and not isinstance(own.model, DistributedDataParallel):
        raise InputError(
            f"module: {ranks} ranks run, and the model of build() is not in DistributedDataParallel: call "
            "torch.distributed.init_process_group and wrap it there, or start the command without torchrun"
        )
    is_main = ranks == 1 or distributed.get_rank() == 0
    try:
        advice = advise(
            own.model,
            own.optimizer,
            own.closure,
            loader=own.loader,
            seconds=seconds,
            compile=compiles,
            worker=module_command(module) if ranks == 1 else None,
            progress=progress if is_main else lambda share, text: None,
        )
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    return advice if is_main else None


def _pipelines(advice: "Advice", stages: int | None, microbatches: int) -> tuple[list["PipelineFinding"], str | None]:
    """The training under every scheme of a pipeline, or why it cannot be cut."""
    from adagp.accelerator.pipeline import SCHEMES
    from adagp.accelerator.pipeline.measured import measured

    if stages is None:
        return [], None
    schemes = [scheme for scheme in SCHEMES if scheme != "local" and (scheme != "chimera" or stages % 2 == 0)]
    try:
        return [measured(advice, stages, microbatches, scheme) for scheme in schemes], None
    except ValueError as error:  # too few layers; the rest of the advice still holds
        return [], str(error)


def _print(advice: "Advice", pipelines: Sequence["PipelineFinding"]) -> None:
    from adagp.report.advice import options_table, pipelines_table

    print_table(options_table(advice))
    console = Console(highlight=False)
    console.print()
    for sentence in advice.verdict:
        console.print(sentence, markup=False, soft_wrap=True)
    if advice.code():
        console.print("\nWrite:")
        for line in advice.code():
            console.print(f"    {line}", markup=False, soft_wrap=True)
    if pipelines:
        console.print()
        print_table(pipelines_table(pipelines))
