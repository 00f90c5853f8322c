"""Models by name, so that a recipe or a command line can say which one it trains."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import nn


class Builder(Protocol):
    """What builds a model: a function of the number of classes and of input channels."""

    def __call__(self, *, num_classes: int, in_channels: int) -> nn.Module:
        """Build one model with freshly drawn weights."""


_B = TypeVar("_B", bound=Builder)
_builders: dict[str, Builder] = {}


def register(name: str) -> Callable[[_B], _B]:
    """Make a builder known under `name`; works for a function and for a module class.

    Raises:
        ValueError: if the name is taken, because a silently replaced model would falsify later runs.
    """

    def add(builder: _B) -> _B:
        if name in _builders:
            raise ValueError(f"register: a model named {name!r} exists already; choose another name")
        _builders[name] = builder
        return builder

    return add


def names() -> list[str]:
    """The names `build` knows, sorted."""
    return sorted(_builders)


def build(name: str, *, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Build the model called `name`; its weights follow torch's global seed.

    Raises:
        ValueError: for an unknown name (the message lists the known ones) or a count below one.
    """
    if name not in _builders:
        raise ValueError(f"name: no model is called {name!r}; known models: {', '.join(names())}")
    if num_classes < 1:
        raise ValueError(f"num_classes: must be at least 1, got {num_classes}")
    if in_channels < 1:
        raise ValueError(f"in_channels: must be at least 1, got {in_channels}")
    return _builders[name](num_classes=num_classes, in_channels=in_channels)
