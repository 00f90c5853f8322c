"""Real images in fixed point."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adagp import data
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.training import ACTIVATION_BITS, CNN


def fixed_images(name: str, root: Path | None, count: int) -> tuple[Integers, NDArray[np.int64]]:
    """The first training images of a data set, normalised, and their labels.

    Raises:
        ValueError: If the data set has other images, or fewer.
        MissingDataError: If its files are missing; the message says where to get them.
    """
    found = data.load(name, root)
    first = CNN[0]
    images = found.train.images
    if not isinstance(images, Tensor) or (found.channels, found.size, found.size) != (first.c_in, *first.image):
        raise ValueError(f"data={name!r}: has no colour images of 32x32 in memory; choose cifar10 or cifar100")
    if found.num_classes > CNN[-1].c_out:
        raise ValueError(f"data={name!r}: has more classes than the CNN's {CNN[-1].c_out}; choose cifar10")
    if count > len(images):
        raise ValueError(f"batches: ask for {count:,} images, and {name} has {len(images):,}; lower them or the batch")
    mean, std = (np.asarray(values)[:, None, None] for values in (found.mean, found.std))
    real = (images[:count].numpy() / 255 - mean) / std
    return np.rint(real * 2.0**ACTIVATION_BITS).astype(np.int64), np.asarray(found.train.labels[:count])
