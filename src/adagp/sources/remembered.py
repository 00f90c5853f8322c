"""Gradients remembered from earlier batches."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from adagp.layers import Layer, Rows
from adagp.layers.rows import MEAN_DECAY, RunningRows
from adagp.predictors import Features
from adagp.sources.registry import supplies
from adagp.sources.source import Source


class Remembered(Source):
    """A running mean of the true gradients, or the last one."""

    def __init__(self, decay: float) -> None:
        """`decay` is the weight of the past; 0 remembers only the last true gradient."""
        self._memory = RunningRows(decay)

    def attach(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        """Remember the rows that this rank holds."""
        self._memory.attach(layers)

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """A copy of what is remembered, so that clipping `.grad` does not reach the memory."""
        rows = self._memory.get(layer.name)
        return None if rows is None else rows.clone()

    def learn(self, true_grads: Mapping[str, Rows]) -> None:
        """Move the memory towards the true gradients."""
        self._memory.add(true_grads)

    def state_dict(self) -> dict[str, Any]:
        """The remembered rows."""
        return self._memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._memory.load_state_dict(state)


@supplies("last")
class Last(Remembered):
    """The last true gradient."""

    always_finite = True

    def __init__(self) -> None:
        """Nothing of the past counts."""
        super().__init__(decay=0.0)


@supplies("mean")
class Mean(Remembered):
    """The running mean of the true gradients."""

    always_finite = True

    def __init__(self) -> None:
        """About ten batches count."""
        super().__init__(decay=MEAN_DECAY)
