"""The optimizer and the engine of a run, built from its recipe."""

from collections.abc import Callable

import torch
from torch import nn

from adagp import AdaGP
from adagp.schedules import Schedule
from adagp.sources import Random, Sampled, Source, TopK
from adagp.training import methods
from adagp.training.recipe import Recipe


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The recipe's optimizer over all parameters of the model."""
    parameters = model.parameters()
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)


def attach(
    recipe: Recipe,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    timer: Callable[[], float] | None,
) -> AdaGP:
    """`AdaGP` on a network, with what the recipe and its method ask for.

    Raises:
        ValueError: When the recipe's layers are not in the network.
    """
    method = methods.get(recipe.method)
    predicts = "predicted" in schedule.sources
    return AdaGP(
        network,
        optimizer,
        schedule,
        predictor=(recipe.predictor or method.predictor or "trusted") if predicts else None,
        sources=_sources(recipe, schedule),
        include=recipe.include,
        exclude=recipe.exclude,
        immediate=recipe.immediate,
        skip_forward=method.skip_forward,
        stop_on_nonfinite=True,
        timer=timer,
    )


def _sources(recipe: Recipe, schedule: Schedule) -> dict[str, Source]:
    """The sources with options. Each seed draws its own random numbers."""
    built: dict[str, Source] = {
        "topk": TopK(recipe.topk, recipe.topk_scale),
        "random": Random(seed=recipe.seed),
        "sampled": Sampled(recipe.rate, keep=recipe.keep, seed=recipe.seed),
    }
    return {name: source for name, source in built.items() if name in schedule.sources}
