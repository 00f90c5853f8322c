"""Predictors: turn what a batch shows of a layer into rows of its weight gradient, without a backward pass."""

from collections.abc import Callable
from typing import TypeVar

from adagp.predictors.interface import Features, FeatureSpec, Pooling, Predictor, RowSharding, TrainingExample
from adagp.predictors.label_aware import LabelAwarePredictor
from adagp.predictors.network import GradientNetwork
from adagp.predictors.paper import PaperPredictor
from adagp.predictors.trusted import TrustedPredictor

__all__ = [
    "FeatureSpec",
    "Features",
    "GradientNetwork",
    "LabelAwarePredictor",
    "PaperPredictor",
    "Pooling",
    "Predictor",
    "RowSharding",
    "TrainingExample",
    "TrustedPredictor",
    "build",
    "names",
    "register",
    "unregister",
]

_PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "trusted": TrustedPredictor,
    "paper": PaperPredictor,
    "literal": lambda: PaperPredictor(literal=True),
    "label-aware": LabelAwarePredictor,
}


_BUILT_IN = frozenset(_PREDICTORS)
SomePredictor = TypeVar("SomePredictor", bound=Callable[[], Predictor])


def register(name: str) -> Callable[[SomePredictor], SomePredictor]:
    """Class decorator that makes a predictor of your own known by name, to `AdaGP` and to recipes.

    The class must be buildable without arguments.

    Raises:
        ValueError: When the name is taken.
    """
    if name in _PREDICTORS:
        raise ValueError(f"predictor {name!r} exists already: choose another name, or unregister it first")

    def add(kind: SomePredictor) -> SomePredictor:
        _PREDICTORS[name] = kind
        return kind

    return add


def unregister(name: str) -> None:
    """Forget a predictor added by `register`.

    Raises:
        ValueError: When no such predictor was added.
    """
    if name in _BUILT_IN or name not in _PREDICTORS:
        raise ValueError(f"predictor {name!r} was not registered by predictors.register")
    del _PREDICTORS[name]


def names() -> list[str]:
    """Every predictor that `build` knows."""
    return list(_PREDICTORS)


def build(name: str) -> Predictor:
    """A new predictor by name: `trusted`, `paper`, `literal` (as printed), `label-aware`, or one registered."""
    if name not in _PREDICTORS:
        raise ValueError(f"predictor={name!r} is unknown; known: {', '.join(_PREDICTORS)}, an object, or None")
    return _PREDICTORS[name]()
