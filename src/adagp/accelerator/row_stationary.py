"""Row-stationary mapping: cycles and DRAM words of a convolution on an array as Eyeriss uses it.

A PE convolves one row of a filter with one row of an input. A *set* of (filter rows) x (output rows) PEs makes one
plane of one output from one plane of one input (Chen, Emer and Sze, "Eyeriss: a spatial architecture for
energy-efficient dataflow", ISCA 2016, section V). A set that is larger than the array is folded, a smaller one is
replicated:

- output rows beyond the array's columns are first placed below each other, if rows of PEs are free, and then folded; a
  fold counts as one more sample;
- filter rows beyond the array's rows are folded, and the folds follow each other directly;
- copies next to each other work on different output channels, copies below each other on different input or output
  channels.

One *pass* of the array takes `filter width x output width` cycles for each fold of the filter. Passes are the body of
three loops over input channels, output channels and samples. Each loop is cut into three: an outer loop, whose rounds
fetch from DRAM; a buffered loop, whose rounds fetch from the buffer; and a registered loop, whose data stays in the
registers. Two of the loops go over the parts of a tensor, and the third reuses each part:

- filters: over input and output channels, reused by samples;
- inputs: over input channels and samples, reused by output channels;
- outputs: over output channels and samples, reused by input channels, which add up partial sums.

How the loops are cut, and which one is innermost, decides how often each tensor moves. Every way is weighed and the one
of least energy is taken, as nn-dataflow does (Gao et al., "TETRIS", ASPLOS 2017). The results equal nn-dataflow's to
the word.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagp.accelerator.energy import ARRAY_COST, BUFFER_COST, DRAM_COST

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Booleans = NDArray[np.bool_]
_EQUAL = 1 + 1e-12
"""Energies are sums of rounded fractions: within this factor they count as equal."""


@dataclass(frozen=True)
class Planes:
    """A two-dimensional convolution of many planes.

    Attributes:
        inputs: Input channels.
        outputs: Output channels.
        samples: Samples of the batch.
        out: Height and width of an output plane.
        kernel: Height and width of a filter.
        stride: Stride of the output in the input.
        dilation: Distance of the filter's taps in the input.
        spread: Distance of stored rows and columns of the input; zeros between them are not stored.
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
        """Positions of the input, padding included, that `out` positions of the output need."""
        reach = (out - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return reach / self.spread[axis]

    @property
    def window_words(self) -> int:
        """Words of an input row that a PE must hold to make one output."""
        return math.ceil(self.extent(1, 1))


@dataclass(frozen=True)
class MappedPlanes:
    """Cycles and traffic of a mapped convolution.

    Attributes:
        cycles: Cycles of all passes.
        dram_words: Words read from and written to DRAM.
        buffer_words: Words read from and written to the global buffer.
        array_words: Words moved between PEs.
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
    """Words of filters, inputs and outputs if each moves once: from DRAM, from the buffer and between PEs."""

    dram: tuple[float, float, float]
    buffer: tuple[float, float, float]
    array: tuple[float, float, float]

    @property
    def moved_cost(self) -> float:
        """Energy of moving the buffer's and the array's words once."""
        return BUFFER_COST * sum(self.buffer) + ARRAY_COST * sum(self.array)

    @property
    def least_cost(self) -> float:
        """Energy of moving all words once."""
        return DRAM_COST * sum(self.dram) + self.moved_cost


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def _fit(planes: Planes, rows: int, columns: int) -> _Fit:
    high, wide = planes.kernel[0], planes.out[0]
    fold_height, copies_high = (_ceil(high, rows), 1) if high > rows else (1, rows // high)
    fold_width, copies_wide = (_ceil(wide, columns), 1) if wide > columns else (1, columns // wide)
    under = min(copies_high, fold_width)  # folds placed below each other instead of after each other
    return _Fit(fold_height, _ceil(fold_width, under), copies_high // under, copies_wide)


def _totals(planes: Planes, fit: _Fit) -> _Totals:
    """Folded planes overlap, so some input rows are fetched more than once."""
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
    """Input and output channels in one pass, for every way to share out copies that lie below each other.

    Ways that need more passes than an earlier one are left out.
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


class _Cuts(NamedTuple):
    """Ways to cut one loop into an outer, a buffered and a registered loop, one entry of each array per way.

    The three counts multiply to the loop's. A place is an index into the loop's divisors.

    Attributes:
        outer: Rounds that fetch from DRAM.
        buffered: Rounds that fetch from the buffer.
        inner_place: Place of buffered times registered, which is what the buffer holds.
        registered_place: Place of what the registers hold.
        next_place: Place of the next larger count that the registers could hold; the number of divisors if none.
    """

    outer: Integers
    buffered: Integers
    inner_place: Integers
    registered_place: Integers
    next_place: Integers

    def at(self, chosen: NDArray[np.intp] | Booleans) -> "_Cuts":
        """The chosen ways."""
        return _Cuts(*(column[chosen] for column in self))


@cache
def _cuts(count: int) -> _Cuts:
    """Every way to cut a loop of this count."""
    places = {divisor: place for place, divisor in enumerate(_divisors(count))}
    ways = []
    for inner in places:
        held = _divisors(inner)
        larger = (*(places[divisor] for divisor in held[1:]), len(places))
        for registered, next_place in zip(held, larger, strict=True):
            ways.append((count // inner, inner // registered, places[inner], places[registered], next_place))
    return _Cuts(*np.array(ways, dtype=np.int64).T)


_LOOPS = _INPUT_CHANNELS, _OUTPUT_CHANNELS, _SAMPLES = range(3)


class _Tensor(NamedTuple):
    """Two loops go over a tensor's parts; the third reuses each part."""

    own_loops: tuple[int, int]
    reused_by: int
    holds_sums: bool = False


_TENSORS = (
    _Tensor((_INPUT_CHANNELS, _OUTPUT_CHANNELS), reused_by=_SAMPLES),  # filters
    _Tensor((_INPUT_CHANNELS, _SAMPLES), reused_by=_OUTPUT_CHANNELS),  # inputs
    _Tensor((_OUTPUT_CHANNELS, _SAMPLES), reused_by=_INPUT_CHANNELS, holds_sums=True),  # outputs
)


@cache
def map_planes(planes: Planes, rows: int, columns: int, buffer_words: int, register_words: int) -> MappedPlanes | None:
    """The mapping of least energy, and of fewest cycles among equals; None if not even one pass fits the memories."""
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
    # Later ways take no more cycles than earlier ones, so the search ends at the first that moves every word once.
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
    """Energy of the best cut and the words it moves; None if no cut can be as cheap as `limit`.

    DRAM words follow from the outer loops alone and are most of the energy. So the outer loops with the fewest DRAM
    words are tried first. After that only those are tried that could still be cheaper if everything else moved once.
    """
    divisors = [_divisor_array(count) for count in loops]
    buffer_fits = _held_words(divisors, plane_words) <= buffer_words
    inner = np.nonzero(buffer_fits)
    outer = np.array([count // divisor[place] for count, divisor, place in zip(loops, divisors, inner, strict=True)])
    dram = _weighted(_dram_fetches(outer), totals.dram).min(axis=0)
    bound = DRAM_COST * dram + totals.moved_cost
    least = bound.min()
    if least > limit:
        return None
    # One entry more along each axis: the place after the last divisor never fits.
    register_fits = np.zeros([len(divisor) + 1 for divisor in divisors], dtype=bool)
    register_fits[:-1, :-1, :-1] = _held_words(divisors, row_words) <= register_words

    def cheapest_among(chosen: Booleans) -> tuple[float, float, float, float]:
        allowed = np.zeros_like(buffer_fits)
        allowed[tuple(place[chosen] for place in inner)] = True
        return _cheapest(*_cuts_within(loops, allowed, register_fits), totals)

    first = cheapest_among(bound == least)
    promising = bound <= first[0] * _EQUAL
    return first if promising.sum() == (bound == least).sum() else cheapest_among(promising)


def _cuts_within(
    loops: tuple[int, int, int], buffer_fits: Booleans, register_fits: Booleans
) -> tuple[Integers, Integers]:
    """Outer and buffered rounds, each (loop, cut), of every combination of cuts that fits both memories.

    A combination whose registers could hold more is left out: with the same outer loops it never moves fewer words.

    Args:
        loops: Counts of the three loops.
        buffer_fits: For every combination of places, whether the buffer holds those counts.
        register_fits: The same for the registers.
    """
    each = []
    for loop, count in enumerate(loops):
        cuts = _cuts(count)
        in_buffer, in_registers = _fits_somewhere(buffer_fits, loop), _fits_somewhere(register_fits, loop)
        each.append(cuts.at(in_buffer[cuts.inner_place] & in_registers[cuts.registered_place]))
    fits = buffer_fits[_own_axes(*(cuts.inner_place for cuts in each))]
    fits &= register_fits[_own_axes(*(cuts.registered_place for cuts in each))]
    combined = [cuts.at(place) for cuts, place in zip(each, np.nonzero(fits), strict=True)]
    holds_most = np.ones(len(combined[0].outer), dtype=bool)
    for enlarged in _LOOPS:
        places = (cuts.next_place if loop == enlarged else cuts.registered_place for loop, cuts in enumerate(combined))
        holds_most &= ~register_fits[tuple(places)]
    outer = np.array([cuts.outer[holds_most] for cuts in combined])
    return outer, np.array([cuts.buffered[holds_most] for cuts in combined])


def _fits_somewhere(fits: Booleans, loop: int) -> Booleans:
    """For each place of one loop, whether it fits together with any places of the other two."""
    found: Booleans = np.logical_or.reduce(fits, axis=tuple(other for other in _LOOPS if other != loop))
    return found


def _own_axes(first: Integers, second: Integers, third: Integers) -> tuple[Integers, Integers, Integers]:
    """One array per loop, each along its own axis, so that together they broadcast to all combinations."""
    return first[:, None, None], second[:, None], third


def _held_words(counts: list[Integers], unit_words: tuple[int, int, int]) -> Integers:
    """Words that all three tensors take, for every combination of the loops' counts."""
    along = _own_axes(*counts)
    filters, inputs, outputs = (
        unit * along[tensor.own_loops[0]] * along[tensor.own_loops[1]]
        for unit, tensor in zip(unit_words, _TENSORS, strict=True)
    )
    words: Integers = filters + inputs + outputs
    return words


def _cheapest(outer: Integers, buffered: Integers, totals: _Totals) -> tuple[float, float, float, float]:
    """Energy of the best order of the loops of the best cut, and the words it moves.

    Only the innermost loop of an order matters. Tables have the axes (innermost outer loop, innermost buffered loop,
    tensor, cut).
    """
    fetches = _dram_fetches(outer)
    refills = np.empty((3, *fetches.shape), dtype=np.int64)
    several = buffered > 1
    for place, tensor in enumerate(_TENSORS):
        first, second = tensor.own_loops
        # Where the registers hold every part that is buffered, the buffer is read as often as DRAM.
        replaced = several[first] | several[second]
        rounds = np.array([outer[tensor.reused_by]] * 3)  # (innermost buffered loop, cut)
        rounds[first] *= buffered[tensor.reused_by]
        rounds[second] *= buffered[tensor.reused_by]
        refills[:, :, place] = np.where(replaced, _moves(tensor, rounds), fetches[:, None, place])
    dram = _weighted(fetches, totals.dram)
    buffer, array = _weighted(refills, totals.buffer), _weighted(refills, totals.array)
    cost = DRAM_COST * dram[:, None] + BUFFER_COST * buffer + ARRAY_COST * array
    order, within, cut = (int(place) for place in np.unravel_index(cost.argmin(), cost.shape))
    return (
        float(cost[order, within, cut]),
        float(dram[order, cut]),
        float(buffer[order, within, cut]),
        float(array[order, within, cut]),
    )


def _dram_fetches(outer: Integers) -> Integers:
    """How often each tensor moves between DRAM and the buffer, from (loop, cut) to (innermost loop, tensor, cut).

    A tensor whose only part stays in the buffer moves once. So does one whose reusing loop is innermost: each part is
    reused before it is replaced. Otherwise it moves again in every round of the reusing loop.
    """
    fetches = np.ones((3, 3, outer.shape[1]), dtype=np.int64)
    several = outer > 1
    for place, tensor in enumerate(_TENSORS):
        first, second = tensor.own_loops
        rounds = np.where(several[first] | several[second], outer[tensor.reused_by], 1)
        fetches[first, place] = fetches[second, place] = _moves(tensor, rounds)
    return fetches


def _moves(tensor: _Tensor, rounds: Integers) -> Integers:
    """Partial sums are written in every round and read back in all but the first."""
    return 2 * rounds - 1 if tensor.holds_sums else rounds


def _weighted(moves: Integers, words: tuple[float, float, float]) -> Reals:
    """Words moved in all, from (..., tensor, cut) to (..., cut)."""
    filters, inputs, outputs = words
    total: Reals = filters * moves[..., 0, :] + inputs * moves[..., 1, :] + outputs * moves[..., 2, :]
    return total


def cut_to_fit(planes: Planes, rows: int, columns: int, buffer_words: int, register_words: int) -> MappedPlanes | None:
    """Map planes, and cut filters that are too large for the memories into bands and strips.

    A weight gradient needs this: its filter is a whole plane of output gradients. Every piece counts as one more input
    channel.
    """
    height, width = planes.kernel
    for bands in range(1, height + 1):
        for strips in range(1, width + 1):
            kernel = (_ceil(height, bands), _ceil(width, strips))
            if strips > 1 and kernel[1] == _ceil(width, strips - 1):
                continue  # the same pieces, and an empty one
            cut = replace(planes, inputs=planes.inputs * bands * strips, kernel=kernel)
            mapping = map_planes(cut, rows, columns, buffer_words, register_words)
            if mapping is not None:
                return mapping
    return None
