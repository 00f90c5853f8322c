"""Layers: modules whose weight gradient `adagp` can supply, and which of a model's modules they are."""

from adagp.layers.coverage import Coverage, CoverageRow, layer_names
from adagp.layers.kinds import Layer, LayerKind, kind_of, register, unregister
from adagp.layers.rows import Rows

__all__ = [
    "Coverage",
    "CoverageRow",
    "Layer",
    "LayerKind",
    "Rows",
    "kind_of",
    "layer_names",
    "register",
    "unregister",
]
