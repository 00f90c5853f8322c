"""The learning rate of a run.

All schedules but `plateau` are pure functions of progress, so that a shorter run decays just as fully.
"""

import math
from typing import Any

import torch

from adagp.training.recipe import Recipe


def factor(schedule: str, progress: float, warmup: float = 0.0) -> float:
    """The fraction of the full learning rate at `progress` (0 at the first batch, towards 1 at the last).

    It rises linearly from zero over the fraction `warmup` of the run; the schedule spans the rest. `plateau` depends on
    the test loss instead, and its factor is 1.
    """
    if progress < warmup:
        return progress / warmup
    progress = (progress - warmup) / (1.0 - warmup)
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule == "step":
        return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01
    if schedule == "exponential":
        return math.pow(0.01, progress)
    return 1.0


class LearningRate:
    """Sets the optimizer's learning rate before each batch, or with `plateau` after each epoch."""

    def __init__(self, recipe: Recipe, optimizer: torch.optim.Optimizer, total_steps: int) -> None:
        """`total_steps` is the length of the run in batches."""
        self._recipe, self._optimizer, self._total_steps = recipe, optimizer, total_steps
        self._plateau = (
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer) if recipe.lr_schedule == "plateau" else None
        )

    @property
    def current(self) -> float:
        """The learning rate in force."""
        return float(self._optimizer.param_groups[0]["lr"])

    def before_batch(self, step: int) -> None:
        """Set the rate of batch `step`."""
        if self._plateau is None:
            recipe = self._recipe
            value = recipe.lr * factor(recipe.lr_schedule, step / self._total_steps, recipe.lr_warmup)
            for group in self._optimizer.param_groups:
                group["lr"] = value

    def after_epoch(self, test_loss: float) -> None:
        """Let `plateau` see the test loss."""
        if self._plateau is not None:
            self._plateau.step(test_loss)

    def state_dict(self) -> dict[str, Any] | None:
        """The state of `plateau`; the other schedules have none."""
        return None if self._plateau is None else self._plateau.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from what `state_dict` returned."""
        if self._plateau is not None and state is not None:
            self._plateau.load_state_dict(state)
