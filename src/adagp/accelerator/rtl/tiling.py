"""Cuts wholes into parts, and says what a tile of an image has."""

from collections.abc import Iterator
from dataclasses import dataclass

from adagp.accelerator.rtl.geometry import ADDRESS_BITS, folds
from adagp.accelerator.rtl.program import Loop


@dataclass(frozen=True)
class Box:
    """The pixels of a tile in the input buffer: where they begin along an axis, how many, and which are real."""

    first: int
    groups: int
    apart: int
    low: int
    high: int

    @property
    def size(self) -> int:
        """All pixels, zeros included."""
        return self.groups * self.apart

    def loops(self, stride: int) -> tuple[Loop, Loop]:
        """Inner loop over the zeros between pixels, outer loop over pixels."""
        return Loop(self.apart, 0, 0, 1), Loop(self.groups, stride, self.low, self.high)


def box(first: int, last: int, apart: int, stored: int) -> Box:
    """Pixels from `first` to `last` of an image of `stored` pixels set `apart`."""
    start = first // apart
    groups = last // apart - start + 1
    low, high = max(0, -start), max(0, min(groups, stored - start))
    return Box(start, groups, apart, min(low, high), high)


def wrapped(address: int) -> int:
    """An address that may begin before DRAM; what lies there is not read."""
    return address % (1 << ADDRESS_BITS)


def ranges(whole: int, part: int) -> Iterator[tuple[int, int]]:
    """First and size of each part."""
    for first in range(0, whole, part):
        yield first, min(part, whole - first)


def parts(whole: int) -> list[int]:
    """Sizes into which a whole can be cut evenly, the largest first."""
    return sorted({folds(whole, count) for count in range(1, whole + 1)}, reverse=True)
