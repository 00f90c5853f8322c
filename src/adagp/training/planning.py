"""From a recipe to the schedule its method follows on a model, and what its batches are called in figures."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import nn

from adagp import models, schedules
from adagp.layers.coverage import layer_names
from adagp.schedules import APPROXIMATIONS, Ladder, Phase, Plan, Repeating, Schedule
from adagp.training import methods
from adagp.training.errors import RecipeError
from adagp.training.methods import Planning
from adagp.training.recipe import Recipe

KINDS = ("WARMUP", "BP", "MIXED", "GP")
"""What batches are told apart by: their phase, and `MIXED` for a BP batch in which not every layer is exact."""
DEFAULT_APPROXIMATION = "1"


def batch_kind(plan: Plan) -> str:
    """One of `KINDS`."""
    if plan.phase is Phase.BP and plan.used_sources() != {"backprop"}:
        return "MIXED"
    return plan.phase.value


def build_schedule(recipe: Recipe, model: nn.Module, total_steps: int, steps_per_epoch: int) -> Schedule:
    """The schedule of a run of that length.

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
        case Planning.TABLE:
            return schedules.from_table(
                recipe.schedule or "", schedules.layer_names(model, recipe.include, recipe.exclude)
            )


def check_layers(recipe: Recipe) -> None:
    """Refuse layers and schedules that the recipe's network does not have, before any data is looked for.

    Raises:
        RecipeError: When the recipe's schedule, prefix or choice of layers does not fit the model.
    """
    model = recipe_outline(recipe)
    try:
        if not layer_names(model, recipe.include, recipe.exclude):
            raise ValueError(f"include = {recipe.include}, exclude = {recipe.exclude} leave no layer to cover")
        build_schedule(recipe, model, 1, 1)
    except ValueError as error:
        raise RecipeError(str(error)) from error


@cache
def outline(model: str, form: str | None = None, **sizes: int) -> nn.Module:
    """A network without weights: its layers' names are all a schedule needs."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return models.build(model, form, **sizes)


def recipe_outline(recipe: Recipe) -> nn.Module:
    """The recipe's network without weights."""
    return outline(recipe.model, recipe.network_form, **recipe.sizes)


def _ladder(recipe: Recipe, total_steps: int, steps_per_epoch: int) -> Ladder:
    """It counts in batches, because in short runs rungs end inside epochs."""
    steps = recipe.ladder(total_steps, steps_per_epoch)
    source = methods.get(recipe.method).source or "predicted"
    return schedules.ladder(1, warmup_epochs=steps.warmup_steps, rung_epochs=steps.rung_steps, source=source)


def middle(recipe: Recipe, model: nn.Module) -> str:
    """Where a prefix ends by default: at half of the layers."""
    layers = schedules.layer_names(model, recipe.include, recipe.exclude)
    return layers[(len(layers) - 1) // 2]


def plan_shares(schedule: Callable[[int], Plan], start: int, count: int = 64) -> list[tuple[Plan, float]]:
    """The different plans a schedule follows from `start` on, in order of appearance, each with its share of batches.

    A repeating schedule is looked at for one whole cycle, any other for `count` steps. Notes make no difference.
    """
    if isinstance(schedule, Repeating):
        count = len(schedule.plans)
    found: dict[tuple[object, ...], tuple[Plan, float]] = {}
    for step in range(start, start + count):
        plan = schedule(step)
        key = (plan.phase, plan.default, tuple(plan.overrides.items()))
        first, share = found.get(key, (plan, 0.0))
        found[key] = (first, share + 1 / count)
    return list(found.values())


def unused_options(names: Sequence[str], recipe: Recipe) -> list[str]:
    """What a recipe sets that none of these methods looks at, or cannot use, in words."""
    plannings = {methods.get(name).planning for name in names}
    problems = _schedule_problems(names, recipe.schedule)
    cells = recipe.schedule if Planning.TABLE in plannings and recipe.schedule else ""
    if (recipe.topk != 1 or recipe.topk_scale != 1) and "topk" not in names and "topk" not in cells:
        problems.append(_of_no_use("topk and topk_scale", names, "topk and for tables with topk in them"))
    if recipe.until is not None and Planning.PREFIX not in plannings:
        problems.append(_of_no_use("until", names, "prefix and prefix-zero"))
    chosen = {"adagp", "adaptive", "prefix"} & set(names) or ("adagp-paper" in names and recipe.predictor == "paper")
    if recipe.predictor is not None and not chosen and "predicted" not in cells:
        able = "adagp, adaptive, prefix and for tables with predicted in them"
        problems.append(_of_no_use(f"predictor = {recipe.predictor}", names, able))
    return problems


def _schedule_problems(names: Sequence[str], schedule: str | None) -> list[str]:
    approximating = [name for name in names if methods.get(name).planning is Planning.APPROXIMATION]
    is_table = schedule is not None and "\n" in schedule
    if "table" in names and not is_table:
        return ["method table needs a table as its schedule: name its file by --schedule (see `adagp schedule show`)"]
    if approximating and is_table:
        return [
            f"method {approximating[0]} takes a schedule by name ({', '.join(APPROXIMATIONS)}); for a table take table"
        ]
    if approximating and schedule is not None and schedule not in APPROXIMATIONS:
        return [
            f"unknown schedule '{schedule}': choose one of {', '.join(APPROXIMATIONS)}, or method table with a file"
        ]
    if schedule is not None and not approximating and "table" not in names:
        return [_of_no_use("schedule", names, "zero, random, topk and table")]
    return []


def _of_no_use(what: str, names: Sequence[str], able: str) -> str:
    return f"{what} would change nothing for {', '.join(names)}: it is for {able}"
