"""Predictors: what a layer saw in a batch becomes rows of its weight gradient, without a backward pass."""

from collections.abc import Callable

from adagp.predictor.glance import Glance, Reading
from adagp.predictor.interface import Lesson, Predictor, Seen
from adagp.predictor.network import PaperPredictor
from adagp.predictor.trusted import TrustedPredictor

__all__ = ["Glance", "Lesson", "PaperPredictor", "Predictor", "Reading", "Seen", "TrustedPredictor", "build", "names"]

_PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "trusted": TrustedPredictor,
    "paper": PaperPredictor,
    "literal": lambda: PaperPredictor(literal=True),
}


def names() -> list[str]:
    """Every predictor that `build` knows."""
    return list(_PREDICTORS)


def build(name: str) -> Predictor:
    """A predictor by name: `trusted`, `paper`, or `literal` (the paper's with random output and raw targets)."""
    if name not in _PREDICTORS:
        raise ValueError(f"predictor={name!r} is unknown; known: {', '.join(_PREDICTORS)}, an object, or None")
    return _PREDICTORS[name]()
