"""Cycles of a layer's passes as the RTL computes them: in tiles that fit its buffers, with moves to and from DRAM.

The passes are compiled as for the RTL, and the formulas in `cycles.py` give the cycles between their barriers. Nothing
is clocked. Addresses do not change cycles, so DRAM may be of any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod

import numpy as np

from adagp.accelerator.designs import Design
from adagp.accelerator.machine import Machine
from adagp.accelerator.rtl.cycles import program_cycles
from adagp.accelerator.rtl.dram import Allocator, Timing
from adagp.accelerator.rtl.garbage import paused_collection
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.integer_network import IntegerNetwork
from adagp.accelerator.rtl.layer_shapes import convolution
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.passes import LayerPasses, PredictorPasses
from adagp.accelerator.rtl.program_builder import ProgramBuilder
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.top import MAIN, PREDICTOR, geometries
from adagp.accelerator.tiled_costs import TiledCosts
from adagp.accelerator.workload import LayerOp

_FEW_GROUPS, _FEW_SAMPLES = 8, 12
"""Groups are alike, and so are samples: beyond three times this number, as many more add the same cycles again."""
_FEW_ROWS = 4096
"""Output positions of a whole batch that are so few that samples are not alike: they share tiles."""


class _Anywhere(Allocator):
    """DRAM without bounds."""

    def take(self, words: int) -> int:
        """Every region at the same address."""
        del words
        return 0


@paused_collection()
def tiled_costs(op: LayerOp, design: Design, machine: Machine) -> TiledCosts:
    """The cycles of every pass of a layer on a design.

    Raises:
        ValueError: If the RTL cannot run the layer.
    """
    if op.kind == "matmul":
        raise ValueError("is a product of two activations, which the RTL does not run; leave tiles out")
    if machine.predictor.channels != 1:
        raise ValueError("channels: the RTL's predictor has 1; leave tiles out")
    array, second = machine.array, machine.second_array
    cores = geometries(design, (array.rows, array.columns), (second.rows, second.columns))
    timing = Timing(machine.dram_words_per_cycle, machine.dram_latency_cycles)
    layer, grid, learns = convolution(op.shape), machine.predictor.grid, design is not Design.BASELINE
    main = replace(cores[MAIN], predictor_depth=0)
    forward, input_grad, weight_grad = _by_samples(layer, op.shape.batch, grid, learns, main, timing)
    predictor = (0, 0, 0)
    if learns:
        predictor = _predictor_cycles(layer.c_out, layer.row, grid, cores.get(PREDICTOR, cores[MAIN]), timing)
    return TiledCosts(forward, input_grad, weight_grad, *predictor)


Cycles = tuple[int, int, int]


@cache
def _by_samples(
    layer: Convolution, samples: int, grid: int, learns: bool, core: CoreGeometry, timing: Timing
) -> Cycles:
    found = partial(_by_groups, layer, grid=grid, learns=learns, core=core, timing=timing)
    few = samples if samples * prod(layer.out) <= _FEW_ROWS else _FEW_SAMPLES
    return _continued(samples, few, lambda count: found(samples=count))


@cache
def _by_groups(layer: Convolution, samples: int, grid: int, learns: bool, core: CoreGeometry, timing: Timing) -> Cycles:
    def of(groups: int) -> Cycles:
        part = replace(layer, c_in=layer.group.c_in * groups, c_out=layer.group.c_out * groups, groups=groups)
        return _layer_cycles(part, samples, grid, learns, core, timing)

    return _continued(layer.groups, _FEW_GROUPS, of)


def _continued(number: int, few: int, of: Callable[[int], Cycles]) -> Cycles:
    """The cycles of a number of equal parts: compiled if they are few, and otherwise along a straight line."""
    if number <= 3 * few:
        return of(number)
    times, rest = divmod(number, few)  # the array takes samples in blocks, of which the last may be cut short
    less, more = of(few + rest), of(2 * few + rest)
    forward, input_grad, weight_grad = (
        after + (after - before) * (times - 2) for before, after in zip(less, more, strict=True)
    )
    return forward, input_grad, weight_grad


def _layer_cycles(
    layer: Convolution, samples: int, grid: int, learns: bool, core: CoreGeometry, timing: Timing
) -> Cycles:
    """Cycles of the forward, the input gradient and the weight gradient."""
    builder = ProgramBuilder(core)
    passes = LayerPasses(_memory(layer, samples, grid), builder)
    works = (partial(passes.forward, 0), partial(passes.input_grad, 0), partial(passes.weight_grad, 0, learns=learns))
    return _pass_cycles(builder, works, timing)


@cache
def _predictor_cycles(filters: int, row: int, grid: int, core: CoreGeometry, timing: Timing) -> Cycles:
    """Cycles of a prediction to learn from, of one that updates the weights, and of learning."""
    builder = ProgramBuilder(core)
    passes = PredictorPasses(_memory(Convolution(row, filters), 1, grid), builder)
    works = (partial(passes.predict, 0, updates=False), partial(passes.predict, 0, updates=True))
    return _pass_cycles(builder, (*works, partial(passes.learn, 0)), timing)


def _pass_cycles(builder: ProgramBuilder, works: Sequence[Callable[[], None]], timing: Timing) -> Cycles:
    """Cycles of each pass, from barrier to barrier."""
    ends = []
    for work in works:
        work()
        builder.barrier()
        ends.append(len(builder.program.descriptors) - 1)
    at = program_cycles({MAIN: builder.program}, {MAIN: builder.core}, timing)[MAIN].barriers
    first, second, third = (at[end] for end in ends)
    return first + 1, second - first, third - second


def _memory(layer: Convolution, samples: int, grid: int) -> MemoryMap:
    """A memory map of one layer, without values."""
    convolution, last = np.empty((1, 1, 3, 3), np.int64), np.empty((grid * grid + 1, layer.row), np.int64)
    return MemoryMap(IntegerNetwork([layer], [], convolution, last, grid), samples, _Anywhere())
