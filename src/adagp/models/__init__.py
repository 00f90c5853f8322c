"""The zoo: small image classifiers, one file per family, one registry."""

from adagp.models import cnn, cnn2, mobilenet, resnet, vgg
from adagp.models.registry import build, names, register

__all__ = ["build", "cnn", "cnn2", "mobilenet", "names", "register", "resnet", "vgg"]
