"""Advice for the training of a recipe."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adagp.advice import Advice, advise
from adagp.advice.user_file import Training
from adagp.data import AnyDataSet
from adagp.measure import cpu_threads
from adagp.training import tasks
from adagp.training.methods import Planning
from adagp.training.recipe import Recipe
from adagp.training.run.build import build_optimizer
from adagp.training.run.world import World
from adagp.training.tasks.task import Task

COARSE_SCALE = 0.5
ALONE = World()


def recipe_training(
    recipe: Recipe, dataset: AnyDataSet, device: torch.device, world: World = ALONE, *, as_trained: bool = False
) -> Training:
    """The training of a recipe by plain backpropagation.

    Each rank of a `world` gets its share of every batch, and a model in DistributedDataParallel.

    Args:
        recipe: The recipe.
        dataset: Its data.
        device: Where to train.
        world: The ranks that train together.
        as_trained: In the memory layout of the recipe; else as people write it, in PyTorch's default layout.
    """
    world.check_batch_size(recipe.batch_size)
    channels_last = recipe.channels_last and as_trained
    plain = recipe.replace(method="bp", channels_last=channels_last, schedule=None)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        task = tasks.build(plain, dataset)
        model = task.build_model().to(device)
    network = world.wrap(model, Planning.BACKPROP)
    closure = _closure(task, model, network, device)
    return Training(network, build_optimizer(plain, model), closure, _batches(task, world, not channels_last))


def advise_recipe(
    recipe: Recipe,
    dataset: AnyDataSet,
    device: torch.device,
    world: World = ALONE,
    *,
    as_trained: bool = False,
    **options: Any,
) -> Advice:
    """Measure what would make the training of a recipe faster.

    Args:
        recipe: Decides model, data, batch size and optimizer.
        dataset: Its data.
        device: Where to train.
        world: The ranks that train together.
        as_trained: In the memory layout of the recipe, not in PyTorch's default one.
        options: Those of `advise`: `seconds`, `compile`, `worker`, `progress`.
    """
    with cpu_threads(recipe.threads):
        own = recipe_training(recipe, dataset, device, world, as_trained=as_trained)
        return advise(own.model, own.optimizer, own.closure, loader=own.loader, **options)


def _batches(task: Task, world: World, contiguous: bool) -> Iterator[Any]:
    """Training batches of this rank; `contiguous` ones have images in the default layout."""
    for whole in task.epoch(0, 0):
        batch = task.share(whole, world.rank, world.size)
        if contiguous and isinstance(batch, tuple):
            yield tuple(part.contiguous() if isinstance(part, Tensor) else part for part in batch)
        else:
            yield batch


def _closure(task: Task, model: nn.Module, network: nn.Module, device: torch.device) -> Callable[..., Tensor]:
    """The task's loss of the model in its wrapper; with the scale of the images where both can take a smaller one."""
    try:
        task.check_scales(model, {COARSE_SCALE})
    except ValueError:
        return lambda batch: task.loss(network, batch, device)
    return lambda batch, scale: task.loss(network, batch, device, scale)
