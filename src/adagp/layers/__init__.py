"""Layers: modules whose weight gradient `adagp` can supply, and which of a model's modules they are."""

from adagp.layers import attention, libraries  # noqa: F401 - they register their kinds
from adagp.layers.coverage import Coverage, CoverageRow, layer_names
from adagp.layers.kinds import (
    Convolution,
    FullyConnected,
    Layer,
    LayerKind,
    Part,
    TransposedConvolution,
    kind_of,
    register,
    unregister,
)
from adagp.layers.rows import Rows

__all__ = [
    "Convolution",
    "Coverage",
    "CoverageRow",
    "FullyConnected",
    "Layer",
    "LayerKind",
    "Part",
    "Rows",
    "TransposedConvolution",
    "kind_of",
    "layer_names",
    "register",
    "unregister",
]
