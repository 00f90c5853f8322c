"""Adaptive gradient prediction and gradient approximation for PyTorch."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp import layers, predictor, schedules
    from adagp.batch import Batch, NonFiniteError
    from adagp.engine import AdaGP
    from adagp.quality import LayerQuality
    from adagp.schedules import Phase, Plan

__all__ = ["AdaGP", "Batch", "LayerQuality", "NonFiniteError", "Phase", "Plan", "layers", "predictor", "schedules"]

__getattr__ = lazily(
    __name__,
    {
        "AdaGP": "adagp.engine",
        "Batch": "adagp.batch",
        "LayerQuality": "adagp.quality",
        "NonFiniteError": "adagp.batch",
        "Phase": "adagp.schedules",
        "Plan": "adagp.schedules",
        "layers": "adagp.layers",
        "predictor": "adagp.predictor",
        "schedules": "adagp.schedules",
    },
)
