"""The optimizer and the engine of a run, built from its recipe."""

import io
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from adagp import AdaGP
from adagp.files import read_bytes
from adagp.schedules import Schedule
from adagp.sources import Local, Random, Sampled, Source, TopK
from adagp.training import methods
from adagp.training.recipe import Recipe
from adagp.training.tasks.task import LocalTask, Task


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The recipe's optimizer over all parameters of the model."""
    parameters = model.parameters()
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)


def load_weights(model: nn.Module, path: str) -> None:
    """Start a model from the weights of another, where names and shapes agree; a new last layer stays random.

    Raises:
        ValueError: When the file holds no weights, or none that fit.
    """
    try:
        found = torch.load(io.BytesIO(read_bytes(Path(path))), map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"weights = '{path}' cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a foreign archive can fail in any way
        raise ValueError(f"weights = '{path}' holds no weights: give the model.pt of a run folder") from error
    own = model.state_dict()
    given = found if isinstance(found, dict) else {}
    fitting = {
        name: value
        for name, value in given.items()
        if name in own and isinstance(value, Tensor) and value.shape == own[name].shape
    }
    if not fitting:
        raise ValueError(f"weights = '{path}' fit no layer of this network: give the model.pt of the same network")
    model.load_state_dict(fitting, strict=False)


def attach(
    recipe: Recipe,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    timer: Callable[[], float] | None,
    task: Task,
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
        sources=_sources(recipe, schedule, task),
        include=recipe.include,
        exclude=recipe.exclude,
        immediate=recipe.immediate,
        skip_forward=method.skip_forward,
        stop_on_nonfinite=True,
        timer=timer,
    )


def _sources(recipe: Recipe, schedule: Schedule, task: Task) -> dict[str, Source]:
    """The sources with options. Each seed draws its own random numbers."""
    built: dict[str, Source] = {
        "topk": TopK(recipe.topk, recipe.topk_scale),
        "random": Random(seed=recipe.seed),
        "sampled": Sampled(recipe.rate, keep=recipe.keep, seed=recipe.seed),
    }
    if "local" in schedule.sources and not isinstance(task, LocalTask):
        raise ValueError(
            f"source local is for classification and next-token prediction, and {recipe.model} for neither"
        )
    if isinstance(task, LocalTask):
        built["local"] = Local(
            recipe.cut_names, parts=recipe.parts, head=recipe.head, loss=task.head_loss, seed=recipe.seed
        )
    return {name: source for name, source in built.items() if name in schedule.sources}
