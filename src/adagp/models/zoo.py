"""Registers every network of this package."""

from adagp.models import (  # noqa: F401 - each registers itself
    cnn,
    cnn2,
    densenet,
    gpt,
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

__all__ = ["build", "example_inputs", "forms", "names", "register", "sizes", "task"]
