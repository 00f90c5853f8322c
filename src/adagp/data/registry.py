"""Data sets by name, all in one form: 8-bit images and integer labels in memory."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from adagp.data.batches import Augment


@dataclass(frozen=True)
class Split:
    """Images as stored, (N, C, H, W) uint8, and labels, (N,) int64.

    They stay 8-bit because that is a quarter of the memory, and `Batches` converts a batch in less than a millisecond.

    Raises:
        ValueError: if the tensors do not have these shapes and types.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images: need uint8 (N, C, H, W), got {self.images.dtype} {tuple(self.images.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels: need int64 ({len(self.images)},), got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DataSet:
    """A training and a test split with what a recipe needs to know about them.

    `mean` and `std` are constants per channel on the scale 0..1, measured once over the training split; `augment` is
    what is usual for this data, None where nothing is.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None


Loader = Callable[[Path | None], DataSet]
_L = TypeVar("_L", bound=Loader)
_loaders: dict[str, Loader] = {}


def register(name: str) -> Callable[[_L], _L]:
    """Make a loader known under `name`; it is given the data root, or None where the user named none.

    Raises:
        ValueError: if the name is taken, because silently replaced data would falsify later runs.
    """

    def add(loader: _L) -> _L:
        if name in _loaders:
            raise ValueError(f"register: a data set named {name!r} exists already; choose another name")
        _loaders[name] = loader
        return loader

    return add


def names() -> list[str]:
    """The names `load` knows, sorted."""
    return sorted(_loaders)


def load(name: str, root: Path | None = None) -> DataSet:
    """Load the data set called `name` into memory; nothing is ever downloaded.

    Args:
        name: one of `names()`.
        root: folder that holds the files of the sets that no package carries; by default the environment's ADAGP_DATA.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
        MissingDataError: if files are not there; the message states the layout expected and where to get it.
        CorruptDataError: if files are there but are not what they should be.
    """
    if name not in _loaders:
        raise ValueError(f"name: no data set is called {name!r}; known data sets: {', '.join(names())}")
    if root is None and os.environ.get("ADAGP_DATA"):
        root = Path(os.environ["ADAGP_DATA"])
    return _loaders[name](root)
