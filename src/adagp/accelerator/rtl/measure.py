"""Whole batches of a small network on the RTL: their bits, and their cycles, also by formula and without stalls."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from adagp.accelerator.designs import Design
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.cycles import program_cycles
from adagp.accelerator.rtl.descriptor import Unit
from adagp.accelerator.rtl.dram import Timing, Words
from adagp.accelerator.rtl.exactness import is_exact
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.integer_network import IntegerNetwork, random_network
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.no_stalls import layer_ops, no_stall_cycles
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.testbench import Bench, Trace
from adagp.accelerator.rtl.top import MAIN, PREDICTOR
from adagp.accelerator.rtl.verilated import VerilatedBench
from adagp.schedules import Phase

LAYERS = (
    Convolution(1, 2, (4, 4), (3, 3), padding=(1, 1)),
    Convolution(2, 3, (4, 4), (3, 3), (2, 2), (1, 1)),
    Convolution(12, 4),
)
"""A network small enough to simulate in seconds: two convolutions and a linear layer."""
SAMPLES, GRID = 2, 2
TIMING = Timing(bandwidth_words=4, latency_cycles=4)
_CORE = CoreGeometry(4, 3, input_depth=512, weight_depth=256, output_depth=64, old_depth=128)
_SECOND = CoreGeometry(3, 2, input_depth=256, weight_depth=128, output_depth=64, old_depth=128, predictor_depth=64)


@dataclass(frozen=True)
class MeasuredBatch:
    """One batch on one design.

    Attributes:
        design: The design.
        phase: The batch's phase.
        bit_exact: Whether outputs, weights and predictor equal the golden model's in every bit.
        measured: Cycles on the RTL, without those that first load a resident predictor.
        model: The same by the formulas, moves included.
        array: Cycles in which the layers' array has a product.
        no_stalls: Cycles of the accelerator model, which leaves moves and tiles out.
        moved_words: Words between the chip and DRAM.
    """

    design: Design
    phase: Phase
    bit_exact: bool
    measured: int
    model: int
    array: int
    no_stalls: int
    moved_words: int

    @property
    def passed(self) -> bool:
        """Whether bits and cycles are as they must be."""
        return self.bit_exact and self.measured == self.model


def small_cores(design: Design) -> dict[str, CoreGeometry]:
    """The cores of a design at a size that is quick to simulate."""
    pools = replace(_CORE, pool_depth=8)
    match design:
        case Design.BASELINE:
            return {MAIN: _CORE}
        case Design.LOW:
            return {MAIN: pools}
        case Design.EFFICIENT:
            return {MAIN: replace(pools, predictor_depth=64)}
        case Design.MAX:
            return {MAIN: pools, PREDICTOR: _SECOND}


def small_batch(seed: int = 0) -> tuple[IntegerNetwork, Integers, Integers]:
    """The small network with random weights, images and gradients; values are so large that some sums saturate."""
    rng = np.random.default_rng(seed)
    network = random_network(LAYERS, rng, grid=GRID)
    images = rng.integers(-3000, 3000, (SAMPLES, LAYERS[0].c_in, *LAYERS[0].image))
    grads = rng.integers(-3000, 3000, (SAMPLES, LAYERS[-1].c_out, *LAYERS[-1].out))
    return network, images, grads


@cache
def _bench(design: Design) -> Bench:
    return Bench(small_cores(design), TIMING)


def run_small(
    design: Design, phase: Phase, bench: Bench | VerilatedBench | None = None, seed: int = 0
) -> tuple[MemoryMap, Words, dict[str, Trace]]:
    """Run a batch of the small network: where it lies in DRAM, DRAM after it, and what each core did."""
    network, images, grads = small_batch(seed)
    memory = MemoryMap(network, SAMPLES)
    dram = memory.filled(images, grads)
    programs = BatchPrograms(design, small_cores(design), memory).batch(phase)
    found = (bench or _bench(design)).run({unit: program.descriptors for unit, program in programs.items()}, dram)
    return memory, dram, found


def measure(design: Design, phase: Phase) -> MeasuredBatch:
    """Run a batch of the small network on the RTL."""
    return account(design, phase, *run_small(design, phase))


def account(design: Design, phase: Phase, memory: MemoryMap, dram: Words, traces: Mapping[str, Trace]) -> MeasuredBatch:
    """What `run_small` gave, beside the golden model and the formulas."""
    cores, (_, images, grads) = small_cores(design), small_batch()
    builder = BatchPrograms(design, cores, memory)
    expected = program_cycles(builder.batch(phase), cores, TIMING)
    before = program_cycles(builder.batch(phase, parts=()), cores, TIMING).values()
    prepare_cycles = max(core.cycles for core in before)
    prepare_words = sum(core.read_words + core.written_words for core in before)
    return MeasuredBatch(
        design=design,
        phase=phase,
        bit_exact=is_exact(memory, dram, images, grads, phase, learns=design is not Design.BASELINE),
        measured=max(trace.cycles for trace in traces.values()) - prepare_cycles,
        model=max(core.cycles for core in expected.values()) - prepare_cycles,
        array=expected[MAIN].busy[Unit.ARRAY],
        no_stalls=no_stall_cycles(layer_ops(LAYERS, SAMPLES), design, phase, cores, GRID, TIMING),
        moved_words=sum(trace.read_words + trace.written_words for trace in traces.values()) - prepare_words,
    )
