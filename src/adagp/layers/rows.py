"""Rows: one layer's gradient as matrices with a row per output unit, and a running mean of them."""

from collections.abc import Mapping
from dataclasses import dataclass
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

    def part(self, rows: slice) -> "Rows":
        """Some of the rows, as a view."""
        return Rows(self.weight[rows], None if self.bias is None else self.bias[rows])

    def zeros(self) -> "Rows":
        """Zeros of the same shape."""
        return Rows(torch.zeros_like(self.weight), None if self.bias is None else torch.zeros_like(self.bias))

    def clone(self) -> "Rows":
        """A copy that shares no memory."""
        return Rows(self.weight.clone(), None if self.bias is None else self.bias.clone())


@dataclass
class _Mean:
    """The running mean of one layer's true gradient, and how many batches moved some of its rows."""

    rows: Rows
    count: int = 0


class RunningRows:
    """The running mean of each layer's true gradient; with decay 0 it is just the last one."""

    def __init__(self, decay: float, most_rows: int | None = None) -> None:
        """Nothing is known yet.

        Args:
            decay: The weight of the past in each batch; the first values are averaged evenly.
            most_rows: In a layer with more rows, a batch moves only a part of this many, and the parts take turns.
                Their means reach as far back as all others, and see fewer of those batches. None moves all rows.
        """
        self._decay, self._most_rows = decay, most_rows
        self._means: dict[str, _Mean] = {}

    def get(self, layer: str) -> Rows | None:
        """The mean itself, not a copy; None before the first true gradient."""
        mean = self._means.get(layer)
        return None if mean is None else mean.rows

    def part_due(self, layer: str, rows: int) -> slice:
        """The part of a layer with this many rows that `add` moves next."""
        parts = self._parts(rows)
        size = -(-rows // parts)
        place = self._means[layer].count % parts if layer in self._means else 0
        return slice(place * size, (place + 1) * size)

    def _parts(self, rows: int) -> int:
        return 1 if self._most_rows is None else -(-rows // self._most_rows)

    def add(self, true_grads: Mapping[str, Rows]) -> None:
        """Move the means towards the true gradients of these layers."""
        moves: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
        for layer, true_grad in true_grads.items():
            if layer not in self._means:
                self._means[layer] = _Mean(true_grad.zeros())
            mean, parts = self._means[layer], self._parts(len(true_grad.weight))
            kept, new = moves.setdefault(max(1 - self._decay**parts, 1 / (mean.count // parts + 1)), ([], []))
            if parts == 1:
                kept += mean.rows.blocks()
                new += true_grad.blocks()
            else:
                due = self.part_due(layer, len(true_grad.weight))
                kept += mean.rows.part(due).blocks()
                new += true_grad.part(due).blocks()
            mean.count += 1
        for weight, (kept, new) in moves.items():
            torch._foreach_lerp_(kept, new, weight)

    def state_dict(self) -> dict[str, Any]:
        """The mean of each layer, and how many batches it stands for."""
        return {name: {"rows": mean.rows.blocks(), "count": mean.count} for name, mean in self._means.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._means = {
            name: _Mean(Rows(saved["rows"][0], (saved["rows"][1:] or [None])[0]).clone(), saved["count"])
            for name, saved in state.items()
        }
