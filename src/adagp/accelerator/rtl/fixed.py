"""Real numbers as whole ones, with a bound on how far off they are."""

from collections.abc import Callable
from dataclasses import dataclass
from math import frexp

import numpy as np
from numpy.typing import NDArray

from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.lowering import Numbers

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Fixed:
    """Whole numbers of `2^-exponent`.

    Attributes:
        whole: The numbers.
        exponent: Of their unit.
        error: How far each may be from the real number it stands for.
    """

    whole: Integers
    exponent: int
    error: Reals

    @classmethod
    def of(cls, real: Reals, width: int = 16) -> "Fixed":
        """The nearest, in the finest unit in which all fit `width` bits."""
        exponent = exponent_for(float(np.abs(real).max()), width)
        return cls(np.rint(real * 2.0**exponent).astype(np.int64), exponent, np.full(real.shape, 0.5**exponent / 2))

    @property
    def real(self) -> Reals:
        """The numbers they stand for, but for the error."""
        return np.asarray(self.whole * 0.5**self.exponent, dtype=np.float64)

    def lowered(self, lower: Callable[[Numbers], Numbers]) -> "Fixed":
        """The same numbers in another order, or more than once."""
        return Fixed(lower(self.whole), self.exponent, lower(self.error))


def exponent_for(largest: float, width: int = 16) -> int:
    """The finest unit in which numbers up to `largest` fit `width` bits, even when rounded up."""
    return width - 1 - frexp(largest * (1 + 2.0 ** (2 - width)))[1]


def product_error(left: Fixed, right: Fixed) -> Reals:
    """How far the product of two matrices may be from that of the real ones."""
    return np.asarray(np.abs(left.real) @ right.error + left.error @ np.abs(right.real) + left.error @ right.error)


def multiplied(left: Fixed, right: Fixed, whole: Integers, shift: int) -> Fixed:
    """What a product of two matrices came to, shifted right to the nearest."""
    exponent = left.exponent + right.exponent - shift
    return Fixed(whole, exponent, product_error(left, right) + (0.5**exponent / 2 if shift else 0.0))
