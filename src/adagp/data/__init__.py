"""Data sets by name, and batches that are a pure function of their seed."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
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
        text_file,
        voc,
    )
    from adagp.data.batches import Augment, Batches
    from adagp.data.classification import DataSet, Split
    from adagp.data.detection import BoxedImage, Detection, DetectionBatch, DetectionBatches
    from adagp.data.files import CorruptDataError, MissingDataError
    from adagp.data.images import ImageFiles
    from adagp.data.sets import (
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
    from adagp.data.text import Text, TokenBatches
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
    "Text",
    "TokenBatches",
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
    "load_text",
    "load_translation",
    "mnist5k",
    "multi30k",
    "names",
    "register",
    "text_file",
    "voc",
]

__getattr__ = lazily(
    __name__,
    {
        "AnyDataSet": "adagp.data.sets",
        "Augment": "adagp.data.batches",
        "Batches": "adagp.data.batches",
        "BoxedImage": "adagp.data.detection",
        "CorruptDataError": "adagp.data.files",
        "DataSet": "adagp.data.classification",
        "Detection": "adagp.data.detection",
        "DetectionBatch": "adagp.data.detection",
        "DetectionBatches": "adagp.data.detection",
        "Entry": "adagp.data.sets",
        "ImageFiles": "adagp.data.images",
        "MissingDataError": "adagp.data.files",
        "PairBatches": "adagp.data.translation",
        "Split": "adagp.data.classification",
        "Text": "adagp.data.text",
        "TokenBatches": "adagp.data.text",
        "Translation": "adagp.data.translation",
        "Vocabulary": "adagp.data.vocabulary",
        "cifar10": "adagp.data.cifar10",
        "cifar100": "adagp.data.cifar100",
        "digits": "adagp.data.digits",
        "entry": "adagp.data.sets",
        "fashion_mnist": "adagp.data.fashion_mnist",
        "image_folder": "adagp.data.image_folder",
        "imagenet": "adagp.data.imagenet",
        "imagenette": "adagp.data.imagenette",
        "load": "adagp.data.sets",
        "load_any": "adagp.data.sets",
        "load_detection": "adagp.data.sets",
        "load_text": "adagp.data.sets",
        "load_translation": "adagp.data.sets",
        "mnist5k": "adagp.data.mnist5k",
        "multi30k": "adagp.data.multi30k",
        "names": "adagp.data.sets",
        "register": "adagp.data.sets",
        "text_file": "adagp.data.text_file",
        "voc": "adagp.data.voc",
    },
)
