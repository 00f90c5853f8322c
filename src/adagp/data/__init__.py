"""The data sets, one file each, one registry; and batches that are a pure function of their seed."""

from adagp.data import cifar10, digits, fashion_mnist, mnist5k
from adagp.data.batches import Augment, Batches
from adagp.data.files import CorruptDataError, MissingDataError
from adagp.data.registry import DataSet, Split, load, names, register

__all__ = [
    "Augment",
    "Batches",
    "CorruptDataError",
    "DataSet",
    "MissingDataError",
    "Split",
    "cifar10",
    "digits",
    "fashion_mnist",
    "load",
    "mnist5k",
    "names",
    "register",
]
