"""From a recipe to the schedule of its method on a model."""

from functools import cache

import torch
from torch import nn

from adagp import models, schedules
from adagp.layers.coverage import layer_names
from adagp.schedules import Ladder, Schedule
from adagp.sources import Local
from adagp.training import methods
from adagp.training.errors import RecipeError
from adagp.training.methods import Planning
from adagp.training.recipe import Recipe, parse_levels

DEFAULT_APPROXIMATION = "1"
"""The schedule of `zero`, `random` and `topk` where the recipe names none."""


def build_schedule(recipe: Recipe, model: nn.Module, total_steps: int, steps_per_epoch: int) -> Schedule:
    """The schedule of a run of `total_steps` batches.

    Raises:
        ValueError: When the recipe's schedule or prefix does not fit the model.
    """
    method = methods.get(recipe.method)
    match method.planning:
        case Planning.BACKPROP:
            return schedules.always_backprop()
        case Planning.ADAPTIVE:
            warmup = recipe.ladder(total_steps, steps_per_epoch).warmup_steps
            return schedules.adaptive(steps_per_epoch, warmup_epochs=warmup / steps_per_epoch)
        case Planning.PROGRESSIVE:
            return schedules.progressive(total_steps, parse_levels(recipe.levels))
        case Planning.GROWING:
            scales = tuple(scale for scale, _ in parse_levels(recipe.levels))
            return schedules.growing(total_steps, scales, dimensions=shrinking_dimensions(recipe.model))
        case Planning.LOCAL:
            return schedules.always_local()
        case Planning.LADDER:
            return _ladder(recipe, total_steps, steps_per_epoch)
        case Planning.PREFIX:
            ladder = _ladder(recipe, total_steps, steps_per_epoch)
            return schedules.prefix(
                model, recipe.until or middle(recipe, model), ladder, recipe.include, recipe.exclude
            )
        case Planning.APPROXIMATION:
            # The paper counts convolutions only.
            layers = schedules.layer_names(model, recipe.include or "Conv", recipe.exclude)
            return schedules.approximation(recipe.schedule or DEFAULT_APPROXIMATION, layers, method.source or "")
        case Planning.SAMPLED:
            return schedules.approximate(sampled_layers(recipe, model), method.source or "")
        case Planning.ECONOMICAL:
            layers = schedules.layer_names(model, recipe.include or "Conv[12]d|Linear", recipe.exclude)
            return schedules.economical(layers, first=min(20, total_steps // 10))
        case Planning.TABLE:
            names = schedules.layer_names(model, recipe.include, recipe.exclude)
            try:
                return schedules.from_table(recipe.schedule or "", names)
            except ValueError as error:
                raise ValueError(f"schedule, {error}") from error


def sampled_layers(recipe: Recipe, model: nn.Module) -> list[str]:
    """The layers of the method `sampled`: convolutions, which have most positions, or else Linear layers."""
    names, modules = schedules.layer_names(model, recipe.include, recipe.exclude), dict(model.named_modules())
    if recipe.include is not None:
        return names
    convolutions = [name for name in names if isinstance(modules.get(name), nn.Conv1d | nn.Conv2d)]
    return convolutions or [name for name in names if isinstance(modules.get(name), nn.Linear)]


def shrinking_dimensions(model: str) -> int:
    """The dimensions of a network's samples that shrink in coarse batches."""
    return 1 if models.task(model) == "next-token" else 2


def check_layers(recipe: Recipe) -> None:
    """Refuse layers and schedules that do not fit the recipe's network, before any data is loaded.

    Raises:
        RecipeError: When the recipe's schedule, prefix or choice of layers does not fit the model.
    """
    model = recipe_outline(recipe)
    try:
        if not layer_names(model, recipe.include, recipe.exclude):
            raise ValueError(
                f"include = {recipe.include}, exclude = {recipe.exclude} leave no layer to cover: relax one of them"
            )
        build_schedule(recipe, model, 1, 1)
        if methods.get(recipe.method).planning is Planning.LOCAL:
            Local(recipe.cut_names).attach(model, ())
    except ValueError as error:
        raise RecipeError(str(error)) from error


def with_exact_table(recipe: Recipe) -> Recipe:
    """The recipe with a table of plain backpropagation, to check it by before its own table is measured."""
    try:
        names = layer_names(recipe_outline(recipe), recipe.include, recipe.exclude)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    table = "".join(f"{name} backprop\n" for name in names)
    return recipe.replace(schedule=f"layer 1\n{table}")


@cache
def outline(model: str, form: str | None = None, **sizes: int) -> nn.Module:
    """A network on the meta device: a schedule needs only the names of its layers."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return models.build(model, form, **sizes)


def recipe_outline(recipe: Recipe) -> nn.Module:
    """The recipe's network on the meta device."""
    return outline(recipe.model, recipe.network_form, **recipe.sizes)


def _ladder(recipe: Recipe, total_steps: int, steps_per_epoch: int) -> Ladder:
    """The ladder in batches, because in short runs rungs end inside epochs."""
    steps = recipe.ladder(total_steps, steps_per_epoch)
    source = methods.get(recipe.method).source or "predicted"
    return schedules.ladder(
        1, warmup_epochs=steps.warmup_steps, rung_epochs=steps.rung_steps, source=source, scale=recipe.scale
    )


def middle(recipe: Recipe, model: nn.Module) -> str:
    """The last layer of the default prefix, which is half of the layers."""
    layers = schedules.layer_names(model, recipe.include, recipe.exclude)
    return layers[(len(layers) - 1) // 2]
