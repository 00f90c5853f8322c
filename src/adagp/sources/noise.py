"""A random gradient."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.sources.registry import supplies
from adagp.sources.source import Source


@supplies("random")
class Random(Source):
    """Normal numbers, drawn again in every batch (paper 003, section 2.2)."""

    always_finite = True

    def __init__(self, std: float | None = None, seed: int = 0) -> None:
        """`std` defaults to one over the number of samples in the batch; the generator is the source's own."""
        if std is not None and not 0 <= std < float("inf"):
            raise ValueError(f"std = {std}: a standard deviation is 0 or more, and finite")
        self._std, self._seed = std, seed
        self.spec = replace(self.spec, needs_forward=std is None)  # it is what tells the batch's size
        self._generator: torch.Generator | None = None
        self._saved: Tensor | None = None

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """Independent entries for weight and bias; all ranks draw all rows, so that the generators stay in step."""
        generator = self._on(layer.weight.device)
        std = 1 / samples if self._std is None else self._std

        def draw(columns: int) -> Tensor:
            rows = torch.randn(layer.out, columns, generator=generator, device=layer.weight.device).mul_(std)
            return rows if layer.own is None else rows[layer.own].clone()

        return Rows(draw(layer.fan_in), None if layer.bias is None else draw(1))

    def options(self) -> str:
        """The standard deviation and the seed."""
        return f"(std={self._std}, seed={self._seed})"

    def _on(self, device: torch.device) -> torch.Generator:
        """The generator; made with the first draw, because only then the device is known."""
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self._seed)
            if self._saved is not None:
                self._generator.set_state(self._saved)
        return self._generator

    def state_dict(self) -> dict[str, Any]:
        """The generator's state; None before the first draw."""
        return {"generator": self._saved if self._generator is None else self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing where the saved source would have."""
        self._generator, self._saved = None, state["generator"]
