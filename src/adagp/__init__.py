"""Adaptive gradient prediction and gradient approximation for PyTorch."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp import layers, predictor, schedules
    from adagp.engine import AdaGP, Batch, NonFiniteError
    from adagp.quality import LayerQuality
    from adagp.schedules import Phase, Plan

__all__ = ["AdaGP", "Batch", "LayerQuality", "NonFiniteError", "Phase", "Plan", "layers", "predictor", "schedules"]

__getattr__ = lazily(
    __name__,
    {
        "AdaGP": "adagp.engine",
        "Batch": "adagp.engine",
        "LayerQuality": "adagp.quality",
        "NonFiniteError": "adagp.engine",
        "Phase": "adagp.schedules",
        "Plan": "adagp.schedules",
        "layers": "adagp.layers",
        "predictor": "adagp.predictor",
        "schedules": "adagp.schedules",
    },
)
