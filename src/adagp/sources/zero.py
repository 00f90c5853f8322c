"""A gradient of zeros."""

import torch

from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.sources.registry import supplies
from adagp.sources.source import Source


@supplies("zero")
class Zero(Source):
    """Zeros: momentum and weight decay go on."""

    always_finite = True

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """Zero rows for weight and bias."""
        weight = torch.zeros(layer.own_out, layer.fan_in, device=layer.weight.device)
        return Rows(weight, None if layer.bias is None else torch.zeros(layer.own_out, 1, device=layer.weight.device))
