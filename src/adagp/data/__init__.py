"""The data sets, one file each, one registry; and batches that are a pure function of their seed."""

from adagp.data import (
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    image_folder,
    imagenet,
    imagenette,
    mnist5k,
    multi30k,
    voc,
)
from adagp.data.batches import Augment, Batches
from adagp.data.classification import DataSet, Split
from adagp.data.detection import BoxedImage, Detection, DetectionBatch, DetectionBatches
from adagp.data.files import CorruptDataError, MissingDataError
from adagp.data.images import ImageFiles
from adagp.data.registry import (
    AnyDataSet,
    Entry,
    entry,
    load,
    load_any,
    load_detection,
    load_translation,
    names,
    register,
)
from adagp.data.translation import PairBatches, Translation
from adagp.data.vocabulary import Vocabulary

__all__ = [
    "AnyDataSet",
    "Augment",
    "Batches",
    "BoxedImage",
    "CorruptDataError",
    "DataSet",
    "Detection",
    "DetectionBatch",
    "DetectionBatches",
    "Entry",
    "ImageFiles",
    "MissingDataError",
    "PairBatches",
    "Split",
    "Translation",
    "Vocabulary",
    "cifar10",
    "cifar100",
    "digits",
    "entry",
    "fashion_mnist",
    "image_folder",
    "imagenet",
    "imagenette",
    "load",
    "load_any",
    "load_detection",
    "load_translation",
    "mnist5k",
    "multi30k",
    "names",
    "register",
    "voc",
]
