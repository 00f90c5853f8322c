"""Handwritten digits from CSV files that other packages ship: real images without a download."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adagp.data.classification import DataSet, Split, in_classes
from adagp.data.files import CorruptDataError, MissingDataError
from adagp.data.order import interleaved_order
from adagp.data.reading import read_limited

_CLASSES = 10


def packaged_file(package: str, *parts: str, distribution: str) -> Path:
    """Path of a file in an installed package. The package is not imported, because that takes seconds.

    Raises:
        MissingDataError: if the package is not installed, or the file is not in it.
    """
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        path = Path(location, *parts)
        if path.is_file():
            return path
    file = "/".join((package, *parts))
    if spec is None:
        raise MissingDataError(f"{file}: package {distribution!r} is not installed; get it: pip install 'adagp[data]'")
    raise MissingDataError(
        f"{file}: package {distribution!r} is installed without this file; get it: pip install --force-reinstall "
        f"--no-deps {distribution}"
    )


def load_digit_table(
    name: str,
    path: Path,
    *,
    distribution: str,
    rows: int,
    train_rows: int,
    size: int,
    largest_pixel: int,
    mean: float,
    std: float,
) -> DataSet:
    """Read a table with one image per row: the pixels, then the label.

    The last images of each class are the test split.

    Args:
        name: of the data set.
        path: the CSV file, gzipped.
        distribution: the package to reinstall if the file is damaged.
        rows: images in the file.
        train_rows: images in the training split.
        size: width and height of the images.
        largest_pixel: grey level of white in the file; it becomes 255.
        mean: of the training split, on the scale 0..1.
        std: of the training split, on the scale 0..1.

    Raises:
        CorruptDataError: if the file is not such a table.
    """
    remedy = f"reinstall {distribution}"
    table = _read_table(path, rows, size * size + 1, remedy)
    pixels, labels = table[:, :-1], table[:, -1].long()
    if not in_classes(labels, _CLASSES) or not bool(((pixels >= 0) & (pixels <= largest_pixel)).all()):
        raise CorruptDataError(f"{path}: has pixels outside of 0..{largest_pixel} or labels outside of 0..9; {remedy}")
    images = (pixels * (255 / largest_pixel)).round().to(torch.uint8).reshape(-1, 1, size, size)
    order = interleaved_order(labels)
    train, test = order[:train_rows], order[train_rows:]
    return DataSet(
        name=name,
        train=Split(images[train], labels[train]),
        test=Split(images[test], labels[test]),
        num_classes=_CLASSES,
        channels=1,
        size=size,
        mean=(mean,),
        std=(std,),
    )


def _read_table(path: Path, rows: int, columns: int, remedy: str) -> Tensor:
    content = read_limited(path, 16 * rows * columns, remedy)  # four times three digits and a comma
    try:
        with warnings.catch_warnings(action="error"):  # where the text is not a number, numpy only warns and stops
            values = np.fromstring(content.replace(b"\n", b",").rstrip(b","), dtype=np.int16, sep=",")
    except (ValueError, DeprecationWarning) as error:
        raise CorruptDataError(f"{path}: is not a table of numbers ({error}); {remedy}") from error
    if values.size != rows * columns:
        raise CorruptDataError(f"{path}: holds {values.size} numbers, not {rows} rows of {columns}; {remedy}")
    return torch.from_numpy(values).reshape(rows, columns)
