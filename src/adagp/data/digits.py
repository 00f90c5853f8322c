"""Handwritten digits, 8x8 grey, from the file scikit-learn carries (UCI "Optical Recognition of Digits")."""

import io
from pathlib import Path

import numpy as np
import torch

from adagp.data.classification import DataSet, Split, in_classes
from adagp.data.files import CorruptDataError, packaged_file
from adagp.data.order import interleaved_order
from adagp.data.reading import read_limited
from adagp.data.registry import register

_TRAIN = 1437
_MAX_BYTES = 2_000_000  # four times the table
_REMEDY = "reinstall scikit-learn"


@register("digits", summary="small handwritten digits, inside scikit-learn")
def load_digits(_root: Path | None = None) -> DataSet:
    """1437 training and 360 test images; the last fifth of each class is the test split.

    The file's 17 grey levels are stretched to 0..255, the scale of all other sets.

    Raises:
        MissingDataError: if scikit-learn is not installed.
        CorruptDataError: if its file is not the one known.
    """
    path = packaged_file("sklearn", "datasets", "data", "digits.csv.gz", distribution="scikit-learn")
    content = read_limited(path, _MAX_BYTES, _REMEDY)
    try:
        table = torch.from_numpy(np.loadtxt(io.BytesIO(content), delimiter=",", dtype=np.float64, ndmin=2))
    except ValueError as error:
        raise CorruptDataError(f"{path}: is no table of numbers ({error}); {_REMEDY}") from error
    if table.shape != (1797, 65):
        raise CorruptDataError(f"{path}: has shape {tuple(table.shape)}, not (1797, 65); {_REMEDY}")
    images = (table[:, :64] * (255 / 16)).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    labels = table[:, 64].long()
    if not in_classes(labels, 10) or not bool(((table[:, :64] >= 0) & (table[:, :64] <= 16)).all()):
        raise CorruptDataError(f"{path}: has pixels outside of 0..16 or labels outside of 0..9; {_REMEDY}")
    order = interleaved_order(labels)
    train, test = order[:_TRAIN], order[_TRAIN:]
    return DataSet(
        name="digits",
        train=Split(images[train], labels[train]),
        test=Split(images[test], labels[test]),
        num_classes=10,
        channels=1,
        size=8,
        mean=(0.3054,),
        std=(0.3754,),
    )
