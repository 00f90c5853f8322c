"""The networks of the papers, by name."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.models import (
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
    from adagp.models.zoo import build, example_inputs, forms, names, register, sizes, task

__all__ = [
    "build",
    "cnn",
    "cnn2",
    "densenet",
    "example_inputs",
    "forms",
    "gpt",
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

__getattr__ = lazily(
    __name__,
    {
        "build": "adagp.models.zoo",
        "cnn": "adagp.models.cnn",
        "cnn2": "adagp.models.cnn2",
        "densenet": "adagp.models.densenet",
        "example_inputs": "adagp.models.zoo",
        "forms": "adagp.models.zoo",
        "gpt": "adagp.models.gpt",
        "inception_v3": "adagp.models.inception_v3",
        "inception_v4": "adagp.models.inception_v4",
        "mobilenet": "adagp.models.mobilenet",
        "names": "adagp.models.zoo",
        "register": "adagp.models.zoo",
        "resnet": "adagp.models.resnet",
        "resnet_cifar": "adagp.models.resnet_cifar",
        "sizes": "adagp.models.zoo",
        "task": "adagp.models.zoo",
        "transformer": "adagp.models.transformer",
        "vgg": "adagp.models.vgg",
        "yolo": "adagp.models.yolo",
    },
)
