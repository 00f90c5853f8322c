"""The golden model: what the hardware must compute, in integers, as a second implementation."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def product(inputs: Integers, weights: Integers, sum_width: int = 48) -> Integers:
    """The sums of an (M x K) by a (K x N) product, wrapped around as `sum_width` bits do."""
    return wrapped(inputs.astype(object) @ weights.astype(object), sum_width)


def wrapped(values: NDArray[np.object_], width: int) -> Integers:
    """Integers of any size, wrapped around to `width` bits."""
    half = 1 << (width - 1)
    return np.asarray((values + half) % (2 * half) - half, dtype=np.int64)


def operands(sums: Integers, shift: int, width: int = 16) -> Integers:
    """Sums as operands: shifted right, rounded to the nearest with halves upwards, and saturated to `width` bits."""
    rounded = (sums >> (shift - 1)) + 1 >> 1 if shift else sums  # adding a half to the sum might overflow 64 bits
    return saturated(rounded, width)


def saturated(values: Integers, width: int) -> Integers:
    """The nearest values that `width` bits hold."""
    most = (1 << (width - 1)) - 1
    return np.clip(values, -most - 1, most)


def relu(sums: Integers, shift: int, width: int = 16) -> Integers:
    """Sums as operands, after ReLU."""
    return np.maximum(operands(sums, shift, width), 0)


def updated(old: Integers, sums: Integers, shift: int, width: int = 16) -> Integers:
    """Old weights minus the gradient; the shift holds its scale and the learning rate."""
    return saturated(old - operands(sums, shift, width), width)


def masked(old: Integers, sums: Integers, shift: int, width: int = 16) -> Integers:
    """The gradient at the input of ReLU: 0 where ReLU's output is 0."""
    return np.where(old > 0, operands(sums, shift, width), 0)
