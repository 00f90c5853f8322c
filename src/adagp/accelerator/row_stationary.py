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

from adagp.accelerator.energy import ARRAY_COST, BUFFER_COST, DRAM_COST

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Booleans = NDArray[np.bool_]
_EQUAL = 1 + 1e-12
"""Energies are sums of rounded fractions: so near each other they are equal."""


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

    @property
    def moved_cost(self) -> float:
        """Energy of the buffer and of the array."""
        return BUFFER_COST * sum(self.buffer) + ARRAY_COST * sum(self.array)

    @property
    def least_cost(self) -> float:
        """Energy of all."""
        return DRAM_COST * sum(self.dram) + self.moved_cost


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
def _divisor_array(value: int) -> Integers:
    return np.array(_divisors(value), dtype=np.int64)


_OUTER, _BUFFERED, _INNER, _REGISTERED, _LARGER = range(5)


@cache
def _cuts(loops: int) -> Integers:
    """Every way to cut a loop into an outer, a buffered and a registered one, as columns.

    Rows: rounds that fetch from DRAM; rounds that fetch from the buffer; which divisor of the loop is buffered times
    registered; which is registered; which is the next larger that could be, one too many where there is none.
    """
    places = {divisor: place for place, divisor in enumerate(_divisors(loops))}
    columns = []
    for inner in places:
        held = _divisors(inner)
        larger = (*(places[divisor] for divisor in held[1:]), len(places))
        for divisor, next_place in zip(held, larger, strict=True):
            columns.append((loops // inner, inner // divisor, places[inner], places[divisor], next_place))
    return np.array(columns, dtype=np.int64).T


# Filters, inputs and outputs, in this order, are reused by one loop each and belong to the two others. The loops are
# input channels 0, output channels 1 and samples 2.
_REUSED_BY = [2, 1, 0]
_BELONGS_TO = ((0, 1), (0, 2), (1, 2))
_FIRST, _SECOND = ([pair[place] for pair in _BELONGS_TO] for place in range(2))
# (innermost loop, tensor): whether the loop reuses the tensor, which is then fetched once.
_REUSES = np.array([[reuse == loop for reuse in _REUSED_BY] for loop in range(3)])[:, :, None]


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
    # Later ways take no more cycles than earlier ones: once all is moved but once, none before is better.
    for inputs, outputs in reversed(list(_replications(planes, fit))):
        loops = (_ceil(planes.inputs, inputs), _ceil(planes.outputs, outputs), planes.samples * fit.fold_width)
        sizes = (plane_words[0] * inputs * outputs, plane_words[1] * inputs, plane_words[2] * outputs)
        if sum(sizes) > buffer_words or sum(row_words) > register_words:
            continue
        cycles = pass_cycles * loops[0] * loops[1] * loops[2]
        limit = min((cost for cost, _, _ in found), default=math.inf) * _EQUAL
        best = _cheapest_cut(loops, sizes, row_words, buffer_words, register_words, totals, limit)
        if best is not None:
            cost, dram, buffer, array = best
            found.append((cost, cycles, MappedPlanes(cycles, round(dram), round(buffer), round(array))))
            if cost <= totals.least_cost * _EQUAL:
                break
    if not found:
        return None
    least = min(cost for cost, _, _ in found)
    equals = [entry for entry in reversed(found) if entry[0] <= least * _EQUAL]
    return min(equals, key=lambda entry: entry[1])[2]


def _cheapest_cut(
    loops: tuple[int, int, int],
    plane_words: tuple[int, int, int],
    row_words: tuple[int, int, int],
    buffer_words: int,
    register_words: int,
    totals: _Totals,
    limit: float,
) -> tuple[float, float, float, float] | None:
    """Energy of the best cut and the words it moves; None where none can be as cheap as `limit`.

    DRAM words follow from the outer loops alone and are most of the energy. So the outer loops of fewest DRAM words are
    tried first, and then only those that could be cheaper even if all else were moved but once.
    """
    divisors = [_divisor_array(count) for count in loops]
    fits = _held_words(divisors, plane_words) <= buffer_words
    inner = np.nonzero(fits)
    outers = np.array([count // divisor[place] for count, divisor, place in zip(loops, divisors, inner, strict=True)])
    dram = _weighted(_dram_fetches(outers), totals.dram).min(axis=0)
    bound = DRAM_COST * dram + totals.moved_cost
    least = bound.min()
    if least > limit:
        return None
    registers = np.zeros([len(divisor) + 1 for divisor in divisors], dtype=bool)  # one divisor too many never fits
    registers[:-1, :-1, :-1] = _held_words(divisors, row_words) <= register_words
    first = _cheapest(_cuts_within(loops, _marked(fits, inner, bound == least), registers), totals)
    promising = bound <= first[0] * _EQUAL
    if promising.sum() == (bound == least).sum():
        return first
    return _cheapest(_cuts_within(loops, _marked(fits, inner, promising), registers), totals)


def _marked(fits: Booleans, places: tuple[NDArray[np.intp], ...], chosen: Booleans) -> Booleans:
    """A table in which only the chosen places are marked."""
    marked = np.zeros_like(fits)
    marked[tuple(place[chosen] for place in places)] = True
    return marked


def _cuts_within(loops: tuple[int, int, int], buffers: Booleans, registers: Booleans) -> tuple[Integers, ...]:
    """Cuts whose inner loops are marked in `buffers` and whose registered ones fit: columns of `_cuts` for each loop.

    A cut that could hold more in the registers is left out: with the same outer loops it never moves less.
    """
    each = []
    for loop, count in enumerate(loops):
        cut = _cuts(count)
        buffered, registered = _somewhere(buffers, loop), _somewhere(registers, loop)
        each.append(cut[:, buffered[cut[_INNER]] & registered[cut[_REGISTERED]]])
    fits = buffers[tuple(_along([cut[_INNER] for cut in each]))]
    fits &= registers[tuple(_along([cut[_REGISTERED] for cut in each]))]
    places = np.nonzero(fits)
    for loop in range(3):
        rows = [_LARGER if loop == other else _REGISTERED for other in range(3)]
        more = registers[tuple(cut[row, place] for cut, row, place in zip(each, rows, places, strict=True))]
        places = tuple(place[~more] for place in places)
    return tuple(cut[:, place] for cut, place in zip(each, places, strict=True))


def _somewhere(marked: Booleans, loop: int) -> Booleans:
    """Which counts of a loop are marked with any of the others."""
    found: Booleans = np.logical_or.reduce(marked, axis=tuple(other for other in range(3) if other != loop))
    return found


def _along(counts: list[Integers]) -> list[Integers]:
    """Each loop's counts along its own axis of a table of all combinations."""
    return [count.reshape([-1 if axis == loop else 1 for axis in range(3)]) for loop, count in enumerate(counts)]


def _held_words(counts: list[Integers], unit_words: tuple[int, int, int]) -> Integers:
    """Words that filters, inputs and outputs take, for all combinations of so many of each loop."""
    along = _along(counts)
    a, b, c = (unit * along[x] * along[y] for unit, (x, y) in zip(unit_words, _BELONGS_TO, strict=True))
    words: Integers = a + b + c
    return words


def _cheapest(cuts: tuple[Integers, ...], totals: _Totals) -> tuple[float, float, float, float]:
    """Energy of the best order of the loops of the best cut, and the words it moves.

    All orders at once, as tables of (innermost outer loop, innermost buffered loop, tensor, cut).
    """
    outers, buffered = np.array([cut[_OUTER] for cut in cuts]), np.array([cut[_BUFFERED] for cut in cuts])
    fetches = _dram_fetches(outers)
    rounds = _with_partial_sums(outers[_REUSED_BY] * np.where(_REUSES, 1, buffered[_REUSED_BY]))
    several = buffered > 1
    # Where the registers hold all that is buffered, the buffer is read as often as DRAM.
    refills = np.where(several[_FIRST] | several[_SECOND], rounds, fetches[:, None])
    dram, buffer, array = (
        _weighted(*moved) for moved in ((fetches, totals.dram), (refills, totals.buffer), (refills, totals.array))
    )
    cost = DRAM_COST * dram[:, None] + BUFFER_COST * buffer + ARRAY_COST * array
    order, within, cut = (int(place) for place in np.unravel_index(cost.argmin(), cost.shape))
    best = cost[order, within, cut], dram[order, cut], buffer[order, within, cut], array[order, within, cut]
    return float(best[0]), float(best[1]), float(best[2]), float(best[3])


def _dram_fetches(outers: Integers) -> Integers:
    """How often each tensor is fetched from DRAM: once, and again in each round of an outer loop that does not hold it.

    (loop, cut) to (innermost loop, tensor, cut).
    """
    several = outers > 1
    again = np.where(several[_FIRST] | several[_SECOND], outers[_REUSED_BY], 1)
    return np.where(_REUSES, 1, _with_partial_sums(again[None]))


def _with_partial_sums(rounds: Integers) -> Integers:
    """Outputs, the last of (..., tensor, cut), are written in every round, and read back in all but the first."""
    rounds[..., 2, :] = 2 * rounds[..., 2, :] - 1
    return rounds


def _weighted(fetches: Integers, words: tuple[float, float, float]) -> Reals:
    """Words of (..., tensor, cut)."""
    filters, inputs, outputs = words
    total: Reals = filters * fetches[..., 0, :] + inputs * fetches[..., 1, :] + outputs * fetches[..., 2, :]
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
