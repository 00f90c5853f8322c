"""Data sets by name, whatever their task."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from adagp.data.classification import DataSet
from adagp.data.detection import Detection
from adagp.data.translation import Translation

Task = Literal["classification", "translation", "detection"]
AnyDataSet = DataSet | Translation | Detection
Loader = Callable[[Path | None], AnyDataSet]
_L = TypeVar("_L", bound=Loader)
_T = TypeVar("_T", DataSet, Translation, Detection)


@dataclass(frozen=True)
class Entry:
    """What is known of a data set before it is loaded; `large_images` are too large for CIFAR forms."""

    name: str
    task: Task
    summary: str
    loader: Loader
    large_images: bool = False


_loaders: dict[str, Entry] = {}
_LOAD: dict[Task, str] = {
    "classification": "load",
    "translation": "load_translation",
    "detection": "load_detection",
}


def register(
    name: str, *, task: Task = "classification", summary: str = "", large_images: bool = False
) -> Callable[[_L], _L]:
    """Make a loader known under `name`; it is given the data root, or None where the user named none.

    Args:
        name: what recipes and commands call the set.
        task: decides the form of what the loader returns: `DataSet`, `Translation` or `Detection`.
        summary: what it is, in a line for people.
        large_images: whether the ImageNet forms of networks suit them rather than those for CIFAR.

    Raises:
        ValueError: if the name is taken, because silently replaced data would falsify later runs, or the task unknown.
    """
    if task not in _LOAD:
        raise ValueError(f"task: must be one of {', '.join(_LOAD)}; got {task!r}")

    def add(loader: _L) -> _L:
        if name in _loaders:
            raise ValueError(f"register: a data set named {name!r} exists already; choose another name")
        _loaders[name] = Entry(name, task, summary, loader, large_images)
        return loader

    return add


def names(task: Task | None = None) -> list[str]:
    """The names known, sorted; those of one task only, if it is given."""
    return sorted(name for name, entry in _loaders.items() if task in (None, entry.task))


def entry(name: str) -> Entry:
    """What is known of the data set called `name` without loading it.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
    """
    if name not in _loaders:
        raise ValueError(f"name: no data set is called {name!r}; known data sets: {', '.join(names())}")
    return _loaders[name]


def load(name: str, root: Path | None = None) -> DataSet:
    """Load a data set for classification; nothing is ever downloaded.

    Args:
        name: one of `names("classification")`.
        root: folder that holds the files of the sets that no package carries; by default the environment's ADAGP_DATA.

    Raises:
        ValueError: for an unknown name, or one of another task; the message tells which there are, or what loads it.
        MissingDataError: if files are not there; the message states the layout expected and where to get it.
        CorruptDataError: if files are there but are not what they should be.
    """
    return _load(name, root, "classification", DataSet)


def load_translation(name: str, root: Path | None = None) -> Translation:
    """Load a data set for translation; arguments and errors as of `load`."""
    return _load(name, root, "translation", Translation)


def load_detection(name: str, root: Path | None = None) -> Detection:
    """Load a data set for detection; arguments and errors as of `load`."""
    return _load(name, root, "detection", Detection)


def load_any(name: str, root: Path | None = None) -> AnyDataSet:
    """Load a data set of whatever task, for those who treat all alike; arguments and errors as of `load`."""
    if root is None and os.environ.get("ADAGP_DATA"):
        root = Path(os.environ["ADAGP_DATA"])
    return entry(name).loader(root)


def _load(name: str, root: Path | None, task: Task, form: type[_T]) -> _T:
    found = entry(name).task
    if found != task:
        raise ValueError(
            f"name: {name!r} is a data set for {found}, not for {task}: load it by data.{_LOAD[found]}, or take one of"
            f" {', '.join(names(task))}"
        )
    loaded = load_any(name, root)
    if not isinstance(loaded, form):
        raise TypeError(
            f"loader: that of {name!r} gave a {type(loaded).__name__}; for {task} it must give a {form.__name__}"
        )
    return loaded
