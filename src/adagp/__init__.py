"""Adaptive gradient prediction and gradient approximation for PyTorch."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp import (
        advice,
        coarse,
        distributed,
        integrations,
        kernels,
        layers,
        predictors,
        quality,
        schedules,
        sources,
    )
    from adagp._engine.batch import Batch
    from adagp._engine.engine import AdaGP
    from adagp._engine.finite import NonFiniteError
    from adagp.advice.study import advise
    from adagp.quality import LayerQuality
    from adagp.schedules import Phase, Plan

__all__ = [
    "AdaGP",
    "Batch",
    "LayerQuality",
    "NonFiniteError",
    "Phase",
    "Plan",
    "advice",
    "advise",
    "coarse",
    "distributed",
    "integrations",
    "kernels",
    "layers",
    "predictors",
    "quality",
    "schedules",
    "sources",
]

__getattr__ = lazily(
    __name__,
    {
        "AdaGP": "adagp._engine.engine",
        "Batch": "adagp._engine.batch",
        "LayerQuality": "adagp.quality",
        "NonFiniteError": "adagp._engine.finite",
        "Phase": "adagp.schedules",
        "Plan": "adagp.schedules",
        "advice": "adagp.advice",
        "advise": "adagp.advice",
        "coarse": "adagp.coarse",
        "distributed": "adagp.distributed",
        "integrations": "adagp.integrations",
        "kernels": "adagp.kernels",
        "layers": "adagp.layers",
        "predictors": "adagp.predictors",
        "quality": "adagp.quality",
        "schedules": "adagp.schedules",
        "sources": "adagp.sources",
    },
)
