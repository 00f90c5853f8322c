"""The zoo: the papers' networks, one file per family, one registry."""

from adagp.models import cnn, cnn2, mobilenet, resnet, resnet_cifar, vgg
from adagp.models.registry import build, example_inputs, forms, names, register, sizes

__all__ = [
    "build",
    "cnn",
    "cnn2",
    "example_inputs",
    "forms",
    "mobilenet",
    "names",
    "register",
    "resnet",
    "resnet_cifar",
    "sizes",
    "vgg",
]
