"""The zoo's networks on the papers' data sets, read from files so that neither torch nor tracing is needed.

`python -m scripts.freeze_networks` writes the files again; a test compares them with a fresh trace.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from adagp.accelerator.shapes import LayerShape, Pass
from adagp.accelerator.workload import LayerOp, rebatch

CNNS = (
    *("resnet50", "resnet101", "resnet152", "inception_v4", "inception_v3", "vgg13", "vgg16", "vgg19"),
    *("densenet121", "densenet161", "densenet169", "densenet201", "mobilenet_v2"),
)
"""The thirteen networks of the paper's table 1, in its order."""
TRACED_BATCH = 2
"""Batch size of the stored files; batch norm cannot be traced with one sample of one pixel."""


@dataclass(frozen=True)
class DataShape:
    """What a data set asks of a network.

    Attributes:
        form: The network's form in the zoo.
        samples: Samples in the training set.
        sizes: Arguments of the network's builder.
    """

    form: str
    samples: int
    sizes: Mapping[str, int]


DATA_SHAPES: Mapping[str, DataShape] = {
    "cifar10": DataShape("cifar", 50_000, {"num_classes": 10}),
    "cifar100": DataShape("cifar", 50_000, {"num_classes": 100}),
    "imagenet": DataShape("imagenet", 1_281_167, {"num_classes": 1000}),
    "multi30k": DataShape("multi30k", 29_000, {}),
    "voc2007": DataShape("voc", 5_011, {"num_classes": 20}),
}
"""Multi30k counts sentence pairs, padded to the 16 words of the zoo's example. VOC 2007 counts `trainval` images."""
IMAGE_SETS = ("cifar10", "cifar100", "imagenet")
"""The data sets of the paper's figures 17 to 19. Their networks end in the classifier."""
PAIRS = (
    *((model, data) for data in IMAGE_SETS for model in CNNS),
    ("transformer", "multi30k"),
    ("yolo_v3", "voc2007"),
)
"""Models and data sets that are read from files."""
FROZEN = tuple(dict.fromkeys((model, DATA_SHAPES[data].form) for model, data in PAIRS))
"""Models and forms that are stored, one file each."""


def network(model: str, data: str, batch: int) -> list[LayerOp]:
    """The operations of one batch of a network of the zoo on a data set.

    Raises:
        ValueError: If the model or data set is unknown, the network has no form for it, or the batch is empty.
    """
    if data not in DATA_SHAPES:
        raise ValueError(f"data={data!r}: is unknown; choose one of {', '.join(DATA_SHAPES)}")
    return list(_network(model, data, batch))


@cache
def _network(model: str, data: str, batch: int) -> tuple[LayerOp, ...]:
    ops = _frozen(model, data) if (model, data) in PAIRS else fresh(model, data)
    return tuple(rebatch(ops, TRACED_BATCH, batch))


def fresh(model: str, data: str) -> list[LayerOp]:
    """Trace a batch of `TRACED_BATCH` samples."""
    import torch

    from adagp import models
    from adagp.accelerator.tracing import trace

    shape = DATA_SHAPES[data]
    try:
        with torch.device("meta"):
            built = models.build(model, shape.form, **shape.sizes)
            inputs = models.example_inputs(model, shape.form, batch=TRACED_BATCH, **shape.sizes)
    except ValueError as error:
        raise ValueError(f"model={model!r} on data={data!r}: {error}") from error
    return trace(built, *inputs)


def stored_data(form: str) -> str:
    """The data set with which a form is stored; others of the same form differ in the classifier alone."""
    return next(data for data, shape in DATA_SHAPES.items() if shape.form == form)


def file_name(model: str, form: str) -> str:
    """Name of a stored network in the folder `frozen`."""
    return f"{model}_{form}.csv"


def _frozen(model: str, data: str) -> tuple[LayerOp, ...]:
    shape = DATA_SHAPES[data]
    ops = _stored(model, shape.form)
    if data not in IMAGE_SETS:
        return ops
    *body, classifier = ops
    return (*body, replace(classifier, shape=replace(classifier.shape, c_out=shape.sizes["num_classes"])))


@cache
def _stored(model: str, form: str) -> tuple[LayerOp, ...]:
    folder = resources.files("adagp.accelerator") / "frozen"
    with (folder / file_name(model, form)).open(encoding="utf-8") as file:
        return tuple(_op(row) for row in csv.DictReader(file))


def _op(row: Mapping[str, str]) -> LayerOp:
    shape = LayerShape(
        int(row["c_in"]),
        int(row["c_out"]),
        _sizes(row["out"]),
        _sizes(row["kernel"]),
        _sizes(row["stride"]),
        int(row["groups"]),
        int(row["batch"]),
        _sizes(row["image"]),
        _sizes(row["dilation"]),
        row["transposed"] == "1",
    )
    passes = tuple(Pass(which) for which in row["passes"].split())
    covered, bias = row["covered"] == "1", row["bias"] == "1"
    pooling = tuple(map(int, row["pooling"].split()))
    return LayerOp(row["name"], row["kind"], shape, passes, covered, bias, int(row["vector_words"]), pooling)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))
