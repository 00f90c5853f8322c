"""Registers every data set of this package."""

from adagp.data import (  # noqa: F401 - each registers itself
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    image_folder,
    imagenet,
    imagenette,
    mnist5k,
    multi30k,
    text_file,
    voc,
)
from adagp.data.registry import (
    AnyDataSet,
    Entry,
    entry,
    load,
    load_any,
    load_detection,
    load_text,
    load_translation,
    names,
    register,
)

__all__ = [
    "AnyDataSet",
    "Entry",
    "entry",
    "load",
    "load_any",
    "load_detection",
    "load_text",
    "load_translation",
    "names",
    "register",
]
