"""The zoo: the papers' networks, one file per family, one registry."""

from adagp.models import (
    cnn,
    cnn2,
    densenet,
    inception_v3,
    inception_v4,
    mobilenet,
    resnet,
    resnet_cifar,
    transformer,
    vgg,
    yolo,
)
from adagp.models.registry import build, example_inputs, forms, names, register, sizes, task

__all__ = [
    "build",
    "cnn",
    "cnn2",
    "densenet",
    "example_inputs",
    "forms",
    "inception_v3",
    "inception_v4",
    "mobilenet",
    "names",
    "register",
    "resnet",
    "resnet_cifar",
    "sizes",
    "task",
    "transformer",
    "vgg",
    "yolo",
]
