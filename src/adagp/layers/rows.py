"""Rows: one layer's gradient as matrices with a row per output unit, and a running mean of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

MEAN_DECAY = 0.9
"""Weight of the past in a running mean of true gradients: it stands for about the last ten."""


class Rows(NamedTuple):
    """The gradient of one layer: `weight` is `(out, fan_in)`, `bias` is `(out, 1)` or None."""

    weight: Tensor
    bias: Tensor | None

    def blocks(self) -> list[Tensor]:
        """Both parts as matrices with one row per output unit; the bias is absent where the layer has none."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def clone(self) -> "Rows":
        """A copy that shares no memory."""
        return Rows(self.weight.clone(), None if self.bias is None else self.bias.clone())


class RunningRows:
    """The running mean of each layer's true gradient; with decay 0 it is just the last one."""

    def __init__(self, decay: float) -> None:
        """`decay` is the weight of the past; the first values are averaged evenly."""
        self._decay = decay
        self._rows: dict[str, Rows] = {}
        self._count: dict[str, int] = {}

    def get(self, layer: str) -> Rows | None:
        """The mean itself, not a copy; None before the first true gradient."""
        return self._rows.get(layer)

    def add(self, truths: Mapping[str, Rows]) -> None:
        """Move the means towards the true gradients of these layers."""
        moves: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
        for layer, truth in truths.items():
            count = self._count.get(layer, 0)
            self._count[layer] = count + 1
            if count == 0:
                self._rows[layer] = truth.clone()
                continue
            kept, new = moves.setdefault(max(1 - self._decay, 1 / (count + 1)), ([], []))
            kept += self._rows[layer].blocks()
            new += truth.blocks()
        for weight, (kept, new) in moves.items():
            torch._foreach_lerp_(kept, new, weight)

    def state_dict(self) -> dict[str, Any]:
        """The means and how many batches each stands for."""
        return {"rows": {name: rows.blocks() for name, rows in self._rows.items()}, "count": dict(self._count)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._rows = {
            name: Rows(blocks[0], (blocks[1:] or [None])[0]).clone() for name, blocks in state["rows"].items()
        }
        self._count = dict(state["count"])
