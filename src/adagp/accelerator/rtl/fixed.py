"""Fixed-point numbers with a bound on their error."""

from collections.abc import Callable
from dataclasses import dataclass
from math import frexp

import numpy as np
from numpy.typing import NDArray

from adagp.accelerator.rtl.golden import Integers

Reals = NDArray[np.float64]
Bilinear = Callable[[Reals, Reals], Reals]
"""A product of two tensors: linear in each, and with positive coefficients."""


@dataclass(frozen=True)
class Fixed:
    """Integers in units of `2^-exponent`.

    Attributes:
        whole: The integers.
        exponent: Exponent of the unit.
        error: How far each may be from the real number it represents.
    """

    whole: Integers
    exponent: int
    error: Reals

    @classmethod
    def of(cls, real: Reals, width: int = 16) -> "Fixed":
        """Round real numbers, in the finest unit in which all of them fit `width` bits."""
        exponent = exponent_for(float(np.abs(real).max()), width)
        return cls(np.rint(real * 2.0**exponent).astype(np.int64), exponent, np.full(real.shape, 0.5**exponent / 2))

    @property
    def real(self) -> Reals:
        """The real numbers they represent, up to the error."""
        return np.asarray(self.whole * 0.5**self.exponent, dtype=np.float64)


def exponent_for(largest: float, width: int = 16) -> int:
    """The finest unit in which numbers up to `largest` fit `width` bits, even when rounded up."""
    return width - 1 - frexp(largest * (1 + 2.0 ** (2 - width)))[1]


def product_error(multiply: Bilinear, left: Fixed, right: Fixed) -> Reals:
    """How far the product of two tensors may be from the product of the real ones."""
    return np.asarray(
        multiply(np.abs(left.real), right.error)
        + multiply(left.error, np.abs(right.real))
        + multiply(left.error, right.error)
    )


def multiplied(multiply: Bilinear, left: Fixed, right: Fixed, whole: Integers, shift: int) -> Fixed:
    """The product of two tensors with its error, given the integers after the rounding shift."""
    exponent = left.exponent + right.exponent - shift
    return Fixed(whole, exponent, product_error(multiply, left, right) + (0.5**exponent / 2 if shift else 0.0))
