"""Folders of images, one folder per class: the layout of ImageNet and of most collections."""

from pathlib import Path

import torch

from adagp.data.batches import Augment
from adagp.data.classification import DataSet, Split
from adagp.data.files import CorruptDataError
from adagp.data.images import ImageFiles
from adagp.data.order import interleaved_order

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
_SUFFIXES = (".jpeg", ".jpg", ".png")


def is_image_folder(folder: Path) -> bool:
    """Whether the folder has the subfolders train and val."""
    return (folder / "train").is_dir() and (folder / "val").is_dir()


def load_image_folder(name: str, folder: Path) -> DataSet:
    """Load the images of `folder`/train and `folder`/val, the test split; the sorted folder names are the classes.

    Images stay in their files. Their order spreads the classes evenly, so that a prefix contains them all.

    Raises:
        CorruptDataError: if a split has no images, or the classes of the two differ.
    """
    classes = _classes(folder / "train")
    if (found := _classes(folder / "val")) != classes:
        raise CorruptDataError(
            f"{folder}: train/ and val/ differ in the classes {', '.join(sorted(set(classes) ^ set(found))[:5])};"
            " both need the same folders"
        )
    return DataSet(
        name=name,
        train=_split(folder / "train", classes),
        test=_split(folder / "val", classes),
        num_classes=len(classes),
        channels=3,
        size=SIZE,
        mean=MEAN,
        std=STD,
        augment=Augment(padding=SIZE // 8, flip=True),
    )


def _classes(split: Path) -> list[str]:
    classes = sorted(path.name for path in split.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise CorruptDataError(f"{split}: has no folders; it needs one for each class, with the class's images")
    return classes


def _split(split: Path, classes: list[str]) -> Split:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(path for path in (split / name).iterdir() if path.suffix.lower() in _SUFFIXES)
        if not found:
            raise CorruptDataError(
                f"{split / name}: has no image ({', '.join(_SUFFIXES)}); add some or remove the folder"
            )
        paths += found
        labels += [label] * len(found)
    order = interleaved_order(torch.tensor(labels))
    files = ImageFiles(tuple(paths[index] for index in order.tolist()), SIZE)
    return Split(files, torch.tensor(labels)[order])
