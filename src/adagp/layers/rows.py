"""Rows: one layer's gradient as matrices with a row per output unit, and a running mean of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from adagp.layers.sharding import distributed_like, own_part

if TYPE_CHECKING:
    from adagp.layers.kinds import Layer

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
        self._layers: dict[str, Layer] = {}

    def attach(self, layers: Sequence["Layer"]) -> None:
        """Get to know the layers, of whose rows this rank may hold some only."""
        self._layers = {layer.name: layer for layer in layers}

    def get(self, layer: str) -> Rows | None:
        """The mean itself, not a copy; None before the first true gradient."""
        mean = self._means.get(layer)
        return None if mean is None else mean.rows

    def count(self, layer: str) -> int:
        """How many true gradients have moved it."""
        return self._means[layer].count if layer in self._means else 0

    def part_due(self, layer: str, rows: int) -> slice:
        """The part of a layer with this many rows that `add` moves next."""
        parts = self._parts(rows)
        size = -(-rows // parts)
        place = self._means[layer].count % parts if layer in self._means else 0
        return slice(place * size, min((place + 1) * size, rows))

    def _parts(self, rows: int) -> int:
        return 1 if self._most_rows is None else -(-rows // self._most_rows)

    def add(self, true_grads: Mapping[str, Rows]) -> None:
        """Move the means towards the true gradients of these layers."""
        moves: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
        for layer, true_grad in true_grads.items():
            if layer not in self._means:
                self._means[layer] = _Mean(true_grad.zeros())
            known = self._layers.get(layer)
            rows = len(true_grad.weight) if known is None else known.out
            mean, parts = self._means[layer], self._parts(rows)
            kept, new = moves.setdefault(max(1 - self._decay**parts, 1 / (mean.count // parts + 1)), ([], []))
            if parts == 1:
                kept += mean.rows.blocks()
                new += true_grad.blocks()
            else:
                due = self.part_due(layer, rows)
                due = due if known is None else known.own_part(due)
                kept += mean.rows.part(due).blocks()
                new += true_grad.part(due).blocks()
            mean.count += 1
        for weight, (kept, new) in moves.items():
            torch._foreach_lerp_(kept, new, weight)

    def state_dict(self) -> dict[str, Any]:
        """The mean of each layer, and how many batches it stands for.

        Of sharded layers all are there, also before the first gradient: `torch.distributed.checkpoint` loads what the
        state has a place for.
        """
        state = {name: {"rows": mean.rows.blocks(), "count": mean.count} for name, mean in self._means.items()}
        for layer in self._layers.values():
            if layer.own is not None:
                mean = self._means.get(layer.name) or _Mean(_zeros(layer))
                blocks = [distributed_like(layer.weight, block) for block in mean.rows.blocks()]
                state[layer.name] = {"rows": blocks, "count": mean.count}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._means = {
            name: _Mean(_rows([own_part(block).clone() for block in saved["rows"]]), saved["count"])
            for name, saved in state.items()
            if saved["count"]
        }


def _rows(blocks: Sequence[Tensor]) -> Rows:
    return Rows(blocks[0], blocks[1] if len(blocks) > 1 else None)


def _zeros(layer: "Layer") -> Rows:
    """Zeros for the rows that this rank holds."""
    weight = torch.zeros(layer.own_out, layer.fan_in, device=layer.weight.device)
    return Rows(weight, None if layer.bias is None else weight.new_zeros(layer.own_out, 1))
