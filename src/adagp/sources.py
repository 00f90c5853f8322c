"""Sources: where a layer's gradient comes from in one batch.

`None` and `0` differ. `skip` leaves `.grad` None: the optimizer does not touch the weight. `zero` writes zeros:
momentum and weight decay still move it. A source that has nothing to give yet returns None and counts as `skip`.
A source speaks for the whole layer, its weight and its bias.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from adagp.layers import Layer
from adagp.predictor import Predictor, Seen
from adagp.rows import MEAN_DECAY, Rows, RunningRows


class Source:
    """Base of all sources."""

    needs_graph = False
    """Whether backward must reach this layer's weight."""
    needs_output = False
    """Whether the layer's output must be seen, so that the forward pass cannot be left out."""
    remembers = False
    """Whether it wants to be told true gradients."""

    def gradient(self, layer: Layer, seen: Seen | None) -> Rows | None:
        """The rows for this batch, or None to leave the layer alone."""
        raise NotImplementedError

    def learn(self, layer: Layer, truth: Rows) -> None:
        """Told every true gradient."""

    def state_dict(self) -> dict[str, Any]:
        """What the source remembers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""


class Backprop(Source):
    """The true gradient: autograd writes it."""

    needs_graph = True

    def gradient(self, layer: Layer, seen: Seen | None) -> Rows | None:
        """What backward left in `.grad`."""
        return layer.gradient()


class Predicted(Source):
    """Rows from the predictor."""

    needs_output = True

    def __init__(self, predictor: Predictor) -> None:
        """The predictor is shared with the engine, which lets it learn."""
        self._predictor = predictor

    def gradient(self, layer: Layer, seen: Seen | None) -> Rows | None:
        """The prediction, or None where the layer was not reached or is not trusted at all."""
        return None if seen is None else self._predictor.predict(layer, seen)


class Zero(Source):
    """Zeros: momentum and weight decay go on."""

    def gradient(self, layer: Layer, seen: Seen | None) -> Rows | None:
        """Zero rows for weight and bias."""
        weight = torch.zeros(layer.out, layer.fan_in, device=layer.weight.device)
        return Rows(weight, None if layer.bias is None else torch.zeros(layer.out, 1, device=layer.weight.device))


class Skip(Source):
    """None: the optimizer leaves the layer alone."""

    def gradient(self, layer: Layer, seen: Seen | None) -> Rows | None:
        """Nothing."""
        return None


class Remembered(Source):
    """A running mean of the true gradients, or the last one."""

    remembers = True

    def __init__(self, decay: float) -> None:
        """`decay` is the weight of the past; 0 remembers only the last true gradient."""
        self._memory = RunningRows(decay)

    def gradient(self, layer: Layer, seen: Seen | None) -> Rows | None:
        """A copy of what is remembered, so that clipping `.grad` does not reach the memory."""
        rows = self._memory.get(layer.name)
        return None if rows is None else rows.clone()

    def learn(self, layer: Layer, truth: Rows) -> None:
        """Move the memory towards a true gradient."""
        self._memory.add(layer.name, truth)

    def state_dict(self) -> dict[str, Any]:
        """The remembered rows."""
        return self._memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._memory.load_state_dict(state)


_FACTORIES: dict[str, Callable[[], Source]] = {
    "backprop": Backprop,
    "zero": Zero,
    "skip": Skip,
    "last": lambda: Remembered(decay=0.0),
    "mean": lambda: Remembered(decay=MEAN_DECAY),
}


def build(names: frozenset[str], predictor: Predictor | None) -> dict[str, Source]:
    """The source objects for these names; ValueError for a name that is unknown or needs a predictor there is not."""
    built: dict[str, Source] = {}
    for name in sorted(names):
        if name == "predicted":
            if predictor is not None:
                built[name] = Predicted(predictor)
        elif name in _FACTORIES:
            built[name] = _FACTORIES[name]()
        else:
            raise ValueError(f"source {name!r} is unknown; known sources: predicted, {', '.join(sorted(_FACTORIES))}")
    return built
