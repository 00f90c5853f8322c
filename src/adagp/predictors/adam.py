"""Adam for the predictor: a few operations on one vector, where an optimizer of torch's costs more in checks."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

_DECAY_MEAN, _DECAY_SQUARE = 0.9, 0.999


class Adam:
    """Adam (Kingma and Ba, 2015) on one vector, with a rate that falls at milestones."""

    def __init__(self, values: Tensor, lr: float, milestones: Sequence[int], gamma: float, eps: float = 1e-8) -> None:
        """Nothing is known of the gradient yet.

        Args:
            values: The vector; it is changed in place.
            lr: The first learning rate.
            milestones: The numbers of steps after which the rate is multiplied by `gamma`.
            gamma: See `milestones`.
            eps: Added to the root of the mean square.
        """
        self._values, self._lr, self._milestones, self._gamma = values, lr, sorted(milestones), gamma
        self._eps = eps
        self._mean, self._square = torch.zeros_like(values), torch.zeros_like(values)
        self._steps = 0

    @property
    def lr(self) -> float:
        """The rate of the next step."""
        return self._lr * self._gamma ** bisect_right(self._milestones, self._steps)

    def step(self, grad: Tensor) -> None:
        """Change the values, given their gradient."""
        lr = self.lr
        self._steps += 1
        self._mean.lerp_(grad, 1 - _DECAY_MEAN)
        self._square.lerp_(grad.square(), 1 - _DECAY_SQUARE)
        # Both means began at zero: the corrections for that are put into the rate and epsilon.
        root = sqrt(1 - _DECAY_SQUARE**self._steps)
        rate = lr * root / (1 - _DECAY_MEAN**self._steps)
        self._values.addcdiv_(self._mean, self._square.sqrt().add_(self._eps * root), value=-rate)

    def state_dict(self) -> dict[str, Any]:
        """The running means, and the number of steps."""
        return {"mean": self._mean.clone(), "square": self._square.clone(), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._steps = state["steps"]
