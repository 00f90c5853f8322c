"""Registry of data sets of all tasks, by name."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from adagp.data.classification import DataSet
from adagp.data.detection import Detection
from adagp.data.text import Text
from adagp.data.translation import Translation

Task = Literal["classification", "translation", "detection", "next-token"]
AnyDataSet = DataSet | Translation | Detection | Text
Loader = Callable[[Path | None], AnyDataSet]
_L = TypeVar("_L", bound=Loader)
_T = TypeVar("_T", DataSet, Translation, Detection, Text)


@dataclass(frozen=True)
class Entry:
    """A registered data set, before it is loaded; `large_images` need the ImageNet forms of networks."""

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
    "next-token": "load_text",
}


def register(
    name: str, *, task: Task = "classification", summary: str = "", large_images: bool = False
) -> Callable[[_L], _L]:
    """Register a loader under `name`. It receives the data root, or None if the user gave none.

    Args:
        name: of the data set in recipes and commands.
        task: determines what the loader must return: `DataSet`, `Translation`, `Detection` or `Text`.
        summary: a line for the list of data sets.
        large_images: whether networks need their ImageNet form, not the one for CIFAR.

    Raises:
        ValueError: if the task is unknown, or the name is taken: silently replaced data would falsify later runs.
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
    """Registered names, sorted; of one task only, if given."""
    return sorted(name for name, entry in _loaders.items() if task in (None, entry.task))


def entry(name: str) -> Entry:
    """The entry of a data set; nothing is loaded.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
    """
    if name not in _loaders:
        raise ValueError(f"name: no data set is called {name!r}; known data sets: {', '.join(names())}")
    return _loaders[name]


def load(name: str, root: Path | None = None) -> DataSet:
    """Load a data set for classification. Nothing is downloaded.

    Args:
        name: one of `names("classification")`.
        root: folder with the files of data sets that no package ships; by default the environment variable ADAGP_DATA.

    Raises:
        ValueError: for an unknown name, or one of another task; the message lists the names or the right function.
        MissingDataError: if files are missing; the message states the expected layout and where to get them.
        CorruptDataError: if files have wrong content.
    """
    return _load(name, root, "classification", DataSet)


def load_translation(name: str, root: Path | None = None) -> Translation:
    """Load a data set for translation; arguments and errors are those of `load`."""
    return _load(name, root, "translation", Translation)


def load_detection(name: str, root: Path | None = None) -> Detection:
    """Load a data set for detection; arguments and errors are those of `load`."""
    return _load(name, root, "detection", Detection)


def load_text(name: str, root: Path | None = None) -> Text:
    """Load running text for next-token prediction; arguments and errors are those of `load`."""
    return _load(name, root, "next-token", Text)


def load_any(name: str, root: Path | None = None) -> AnyDataSet:
    """Load a data set of any task; arguments and errors are those of `load`."""
    if root is None and os.environ.get("ADAGP_DATA"):
        root = Path(os.environ["ADAGP_DATA"])
    return entry(name).loader(root)


def _load(name: str, root: Path | None, task: Task, form: type[_T]) -> _T:
    found = entry(name).task
    if found != task:
        raise ValueError(
            f"name: {name!r} is a data set for {found}, not for {task}: load it by data.{_LOAD[found]}, or use one of"
            f" {', '.join(names(task))}"
        )
    loaded = load_any(name, root)
    if not isinstance(loaded, form):
        raise TypeError(
            f"loader: that of {name!r} returned a {type(loaded).__name__}; for {task} it must return a {form.__name__}"
        )
    return loaded
