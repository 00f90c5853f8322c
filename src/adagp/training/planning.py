"""From a recipe to the schedule its method follows on a model, and what its batches are called in figures."""

from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from adagp import models, schedules
from adagp.schedules import APPROXIMATIONS, Ladder, Phase, Plan, Schedule
from adagp.training import methods
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
            name = recipe.schedule or DEFAULT_APPROXIMATION
            if name == "ladder":
                return _ladder(recipe, total_steps, steps_per_epoch)
            # The paper counts convolutions only.
            layers = schedules.layer_names(model, recipe.include or "Conv", recipe.exclude)
            return schedules.approximation(name, layers, method.source or "")
        case Planning.TABLE:
            return schedules.from_table(
                recipe.schedule or "", schedules.layer_names(model, recipe.include, recipe.exclude)
            )


@cache
def outline(model: str) -> nn.Module:
    """A model of that name without weights: its layers' names are all a schedule needs."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return models.build(model)


def _ladder(recipe: Recipe, total_steps: int, steps_per_epoch: int) -> Ladder:
    """It counts in batches, because in short runs rungs end inside epochs."""
    steps = recipe.ladder(total_steps, steps_per_epoch)
    source = methods.get(recipe.method).source or "predicted"
    return schedules.ladder(1, warmup_epochs=steps.warmup_steps, rung_epochs=steps.rung_steps, source=source)


def middle(recipe: Recipe, model: nn.Module) -> str:
    """Where a prefix ends by default: at half of the layers."""
    layers = schedules.layer_names(model, recipe.include, recipe.exclude)
    return layers[(len(layers) - 1) // 2]


def distinct_plans(schedule: Callable[[int], Plan], start: int, count: int = 64) -> list[Plan]:
    """The different plans among `count` steps from `start`, in order of appearance; notes make no difference."""
    found: dict[tuple[object, ...], Plan] = {}
    for step in range(start, start + count):
        plan = schedule(step)
        found.setdefault((plan.phase, plan.default, tuple(plan.overrides.items())), plan)
    return list(found.values())


def approximation_problem(names: tuple[str, ...], schedule: str | None) -> str | None:
    """Why a recipe's schedule is of no use to these methods, or None."""
    users = [name for name in names if methods.get(name).planning in (Planning.APPROXIMATION, Planning.TABLE)]
    if schedule is not None and not users:
        able = [
            name for name in methods.names() if methods.get(name).planning in (Planning.APPROXIMATION, Planning.TABLE)
        ]
        return f"schedule would change nothing for {', '.join(names)}: it is for {', '.join(able)}"
    for name in users:
        planning = methods.get(name).planning
        if planning is Planning.TABLE and (schedule is None or "\n" not in schedule):
            return "method table needs a table as its schedule: name its file by --schedule (see `adagp schedule show`)"
        known = (*APPROXIMATIONS, "ladder")
        if planning is Planning.APPROXIMATION and schedule is not None and schedule not in known:
            if "\n" in schedule:
                return f"method {name} takes a schedule by name ({', '.join(known)}): for a table take method table"
            return f"unknown schedule '{schedule}': choose one of {', '.join(known)}, or method table with a file"
        if name == "topk" and schedule == "ladder":
            return "topk needs a backward, and the ladder's GP batches have none: choose a schedule 1, 2 or 3"
    return None
