"""Adaptive gradient prediction and gradient approximation for PyTorch."""

from adagp import layers, predictor, schedules
from adagp.engine import AdaGP, Batch, NonFiniteError
from adagp.quality import LayerQuality
from adagp.schedules import Phase, Plan

__all__ = ["AdaGP", "Batch", "LayerQuality", "NonFiniteError", "Phase", "Plan", "layers", "predictor", "schedules"]
