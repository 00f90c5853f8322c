"""Weight averaging: the network that counts is a running mean of the one that is trained.

Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, arXiv 1803.05407; Kaddour, Stop
Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight Averaging, arXiv 2209.14981. Here it is an
exponential mean over a twentieth of the run, beside a learning rate that decays in full.
"""

from typing import Any

import torch
from torch import Tensor, nn

from adagp.training.rivals.rival import Rival
from adagp.training.tasks import Task

SPAN = 0.05


class Averaging(Rival):
    """Averages weights and the statistics of normalisation layers after every batch; evaluates and keeps the mean."""

    def begin(self, task: Task, model: nn.Module, seed: int, total_steps: int) -> None:
        """Start from the first weights."""
        self._span = max(1, round(SPAN * total_steps))
        self._count = 0
        self._mean = {name: value.clone() for name, value in _averaged(model).items()}

    def after_batch(self, model: nn.Module) -> None:
        """Move the mean towards the weights."""
        self._count += 1
        current = _averaged(model)
        torch._foreach_lerp_(list(self._mean.values()), list(current.values()), 1 / min(self._count, self._span))

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The mean, and what cannot be averaged as it is."""
        return {**model.state_dict(), **self._mean}

    def state_dict(self) -> dict[str, Any]:
        """The mean, and how many batches it has seen."""
        return {"mean": dict(self._mean), "batches": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the mean."""
        self._mean = {name: state["mean"][name].to(value.device).clone() for name, value in self._mean.items()}
        self._count = int(state["batches"])


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of numbers that have a mean."""
    return {name: value.detach() for name, value in model.state_dict().items() if value.is_floating_point()}
