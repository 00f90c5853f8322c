"""Row-stationary mapping: cycles and DRAM words of a convolution on an array as Eyeriss uses it.

A PE convolves one row of a filter with one row of an input. A *set* of (filter rows) x (output rows) PEs makes one
plane of one output from one plane of one input (Chen, Emer and Sze, "Eyeriss: a spatial architecture for
energy-efficient dataflow", ISCA 2016, section V). A set that is larger than the array is folded, a smaller one is
replicated:

- output rows beyond the array's columns are first laid under each other, where rows of PEs are free, and then folded,
  and a fold counts as a sample more;
- filter rows beyond the array's rows are folded and follow each other at once;
- copies side by side work on different output channels, copies under each other on different input or output channels.

One *pass* of the array then takes `filter width x output width` cycles a fold of the filter, and passes are the body of
three loops over input channels, output channels and samples. How these are cut into what stays in the buffer, and what
stays in the registers, decides the traffic: every way of cutting is weighed and the one of least energy is taken, as
nn-dataflow does (Gao et al., "TETRIS", ASPLOS 2017), whose results this module gives to the word.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

DRAM_COST, BUFFER_COST, ARRAY_COST, REGISTER_COST = 200, 6, 2, 1
"""Energy of moving one 16-bit word, in multiply-accumulates (Eyeriss, ISCA 2016, table IV)."""

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Planes:
    """A two-dimensional convolution of many planes.

    Attributes:
        inputs: Input channels.
        outputs: Output channels.
        samples: Batch.
        out: Height and width of an output plane.
        kernel: Height and width of a filter.
        stride: Of the output in the input.
        dilation: Of the filter's taps in the input.
        spread: Every so many rows and columns of the input are data, the others zeros that are not stored.
    """

    inputs: int
    outputs: int
    samples: int
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    spread: tuple[int, int] = (1, 1)

    def extent(self, axis: int, out: float) -> float:
        """Positions of the input, padding included, that so many positions of the output need."""
        reach = (out - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return reach / self.spread[axis]

    @property
    def window_words(self) -> int:
        """Of an input row, what a PE must hold to make one output."""
        return math.ceil(self.extent(1, 1))


@dataclass(frozen=True)
class MappedPlanes:
    """What became of a convolution.

    Attributes:
        cycles: Of all passes.
        dram_words: Read and written.
        buffer_words: Read from and written to the global buffer.
        array_words: Moved between PEs.
    """

    cycles: int
    dram_words: int
    buffer_words: int
    array_words: int


@dataclass(frozen=True)
class _Fit:
    """How a set of PEs lies in the array."""

    fold_height: int
    fold_width: int
    copies_high: int
    copies_wide: int


@dataclass(frozen=True)
class _Totals:
    """Words of filters, inputs and outputs if each is moved once, from DRAM, from the buffer and between PEs."""

    dram: tuple[float, float, float]
    buffer: tuple[float, float, float]
    array: tuple[float, float, float]


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def _fit(planes: Planes, rows: int, columns: int) -> _Fit:
    high, wide = planes.kernel[0], planes.out[0]
    fold_height, copies_high = (_ceil(high, rows), 1) if high > rows else (1, rows // high)
    fold_width, copies_wide = (_ceil(wide, columns), 1) if wide > columns else (1, columns // wide)
    under = min(copies_high, fold_width)  # folds that lie under each other instead of following each other
    return _Fit(fold_height, _ceil(fold_width, under), copies_high // under, copies_wide)


def _totals(planes: Planes, fit: _Fit) -> _Totals:
    """Folded planes overlap, so that some input rows are fetched once more."""
    height, width = planes.out
    folded_height, folded_kernel = _ceil(height, fit.fold_width), _ceil(planes.kernel[0], fit.fold_height)
    samples = planes.samples * fit.fold_width
    planes_of = (planes.inputs * planes.outputs, planes.inputs * samples, planes.outputs * samples)
    width_in = planes.extent(1, width)
    sizes = (
        planes.kernel[0] * planes.kernel[1],
        planes.extent(0, height / fit.fold_width) * width_in,
        height / fit.fold_width * width,
    )
    dram = tuple(size * count for size, count in zip(sizes, planes_of, strict=True))
    pes = folded_height * folded_kernel * fit.fold_height
    array = tuple(pes * row * count for row, count in zip((planes.kernel[1], width_in, width), planes_of, strict=True))
    buffer = (dram[0], dram[1] * fit.fold_height, dram[2] * fit.fold_height)
    return _Totals((dram[0], dram[1], dram[2]), buffer, (array[0], array[1], array[2]))


def _replications(planes: Planes, fit: _Fit) -> Iterator[tuple[int, int]]:
    """Input and output channels in one pass: copies under each other are shared out in every way.

    A way that needs more passes than one before it is left out; one that needs fewer comes beside it.
    """
    fewest: int | None = None
    for high in _divisors(fit.copies_high):
        inputs = min(high, planes.inputs)
        outputs = min(fit.copies_high // high * fit.copies_wide, planes.outputs)
        passes = _ceil(planes.inputs, inputs) * _ceil(planes.outputs, outputs)
        if fewest is None or passes <= fewest:
            fewest = passes
            yield inputs, outputs


@cache
def _divisors(value: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(value**0.5) + 1) if value % d == 0]
    return tuple(sorted({*small, *(value // d for d in small)}))


@cache
def _cuts(loops: int) -> Integers:
    """Every (outer, buffered, registered) with this product, as three rows."""
    cuts = [(a, b, loops // a // b) for a in _divisors(loops) for b in _divisors(loops // a)]
    return np.array(cuts, dtype=np.int64).T


# Filters, inputs and outputs, in this order, are reused by one loop each and belong to the two others. The loops are
# input channels 0, output channels 1 and samples 2.
_REUSED_BY = (2, 1, 0)
_BELONGS_TO = ((0, 1), (0, 2), (1, 2))


@cache
def map_planes(planes: Planes, rows: int, columns: int, buffer_words: int, register_words: int) -> MappedPlanes | None:
    """The mapping of least energy, of fewest cycles among equals; None where not even one pass fits the memories."""
    fit = _fit(planes, rows, columns)
    totals = _totals(planes, fit)
    folded_height = _ceil(planes.out[0], fit.fold_width)
    plane_words = (
        planes.kernel[0] * planes.kernel[1],
        math.ceil(planes.extent(0, folded_height)) * math.ceil(planes.extent(1, planes.out[1])),
        folded_height * planes.out[1],
    )
    row_words = (planes.kernel[1], planes.window_words, 1)
    pass_cycles = fit.fold_height * planes.kernel[1] * planes.out[1]
    found: list[tuple[float, int, MappedPlanes]] = []
    for inputs, outputs in _replications(planes, fit):
        loops = (_ceil(planes.inputs, inputs), _ceil(planes.outputs, outputs), planes.samples * fit.fold_width)
        sizes = (plane_words[0] * inputs * outputs, plane_words[1] * inputs, plane_words[2] * outputs)
        if sum(sizes) > buffer_words or sum(row_words) > register_words:
            continue
        cycles = pass_cycles * loops[0] * loops[1] * loops[2]
        cuts = _feasible(loops, sizes, row_words, buffer_words, register_words)
        cost, dram, buffer, array = _cheapest(cuts, totals)
        found.append((cost, cycles, MappedPlanes(cycles, round(dram), round(buffer), round(array))))
    if not found:
        return None
    least = min(cost for cost, _, _ in found)
    equals = [entry for entry in found if entry[0] <= least * (1 + 1e-12)]  # costs are sums of rounded fractions
    return min(equals, key=lambda entry: entry[1])[2]


def _feasible(
    loops: tuple[int, int, int],
    plane_words: tuple[int, int, int],
    row_words: tuple[int, int, int],
    buffer_words: int,
    register_words: int,
) -> tuple[Integers, ...]:
    """Cuts of the three loops that fit the buffer and the registers: for each loop (3, cuts)."""
    each = [_cuts(count) for count in loops]
    held = [cut[2] for cut in each]
    inner = np.meshgrid(*(np.arange(len(part)) for part in held), indexing="ij")
    registered = [part[index] for part, index in zip(held, inner, strict=True)]
    buffered = [(cut[1] * cut[2])[index] for cut, index in zip(each, inner, strict=True)]
    fits = _held_words(registered, row_words) <= register_words
    fits &= _held_words(buffered, plane_words) <= buffer_words
    return tuple(cut[:, index[fits]] for cut, index in zip(each, inner, strict=True))


def _held_words(counts: list[Integers], unit_words: tuple[int, int, int]) -> Integers:
    """Words that filters, inputs and outputs take, if so many of each loop are held."""
    words = np.zeros_like(counts[0])
    for unit, (a, b) in zip(unit_words, _BELONGS_TO, strict=True):
        words += unit * counts[a] * counts[b]
    return words


def _cheapest(cuts: tuple[Integers, ...], totals: _Totals) -> tuple[float, float, float, float]:
    """Energy of the best order of the loops of the best cut, and the words it moves."""
    best: tuple[float, float, float, float] | None = None
    for innermost_outer in range(3):
        fetches = [_outer_fetches(cuts, tensor, innermost_outer) for tensor in range(3)]
        dram = _weighted(fetches, totals.dram)
        for innermost_buffered in range(3):
            refills = [_buffer_fetches(cuts, tensor, innermost_buffered, fetches[tensor]) for tensor in range(3)]
            buffer, array = _weighted(refills, totals.buffer), _weighted(refills, totals.array)
            cost = DRAM_COST * dram + BUFFER_COST * buffer + ARRAY_COST * array
            place = int(cost.argmin())
            if best is None or cost[place] < best[0]:
                best = (float(cost[place]), float(dram[place]), float(buffer[place]), float(array[place]))
    assert best is not None
    return best


def _outer_fetches(cuts: tuple[Integers, ...], tensor: int, innermost: int) -> Integers:
    """How often a tensor is fetched from DRAM: once, and again in each round of an outer loop that does not hold it."""
    reuse, (a, b) = _REUSED_BY[tensor], _BELONGS_TO[tensor]
    if reuse == innermost:
        return np.ones_like(cuts[0][0])
    moves = (cuts[a][0] > 1) | (cuts[b][0] > 1)
    return _with_partial_sums(tensor, np.where(moves, cuts[reuse][0], 1))


def _buffer_fetches(cuts: tuple[Integers, ...], tensor: int, innermost: int, outer: Integers) -> Integers:
    """How often a tensor is fetched from the buffer: as from DRAM, where the registers hold all that is buffered."""
    reuse, (a, b) = _REUSED_BY[tensor], _BELONGS_TO[tensor]
    rounds = cuts[reuse][0] if reuse == innermost else cuts[reuse][0] * cuts[reuse][1]
    moves = (cuts[a][1] > 1) | (cuts[b][1] > 1)
    return np.where(moves, _with_partial_sums(tensor, rounds), outer)


def _with_partial_sums(tensor: int, rounds: Integers) -> Integers:
    """Outputs are written in every round, and read back in all but the first."""
    return 2 * rounds - 1 if tensor == 2 else rounds


def _weighted(fetches: list[Integers], words: tuple[float, float, float]) -> Reals:
    total = np.zeros(fetches[0].shape)
    for count, unit in zip(fetches, words, strict=True):
        total += unit * count
    return total


def cut_to_fit(planes: Planes, rows: int, columns: int, buffer_words: int, register_words: int) -> MappedPlanes | None:
    """Map planes whose filters are too large for the memories by cutting the filters into strips and bands.

    This is what a weight gradient needs, whose filter is a whole plane of output gradients. Every piece counts as an
    input channel more.
    """
    height, width = planes.kernel
    for bands in range(1, height + 1):
        for strips in range(1, width + 1):
            kernel = (_ceil(height, bands), _ceil(width, strips))
            if strips > 1 and kernel[1] == _ceil(width, strips - 1):
                continue  # the same pieces and one without work
            cut = replace(planes, inputs=planes.inputs * bands * strips, kernel=kernel)
            mapping = map_planes(cut, rows, columns, buffer_words, register_words)
            if mapping is not None:
                return mapping
    return None
