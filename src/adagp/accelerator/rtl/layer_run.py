"""Runs one layer of a network on the RTL of a design, as a GP or a BP batch, and compares it with the golden model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt, prod
from pathlib import Path

import numpy as np

from adagp.accelerator.designs import Design
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.cycles import CoreCycles, program_cycles
from adagp.accelerator.rtl.descriptor import Unit
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.exactness import is_exact
from adagp.accelerator.rtl.garbage import paused_collection
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.integer_network import IntegerNetwork, Shifts, random_network
from adagp.accelerator.rtl.layer_shapes import convolution
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.no_stalls import no_stall_cycles
from adagp.accelerator.rtl.simulators import Simulator
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.top import MAIN, PREDICTOR
from adagp.accelerator.shapes import Pass
from adagp.accelerator.workload import LayerOp, PredictorShape
from adagp.schedules import Phase


@dataclass(frozen=True)
class CoreUse:
    """How busy a core was, as shares of the batch's cycles.

    Attributes:
        pes: Multiply-accumulates of the layer and the predictor, of what the PEs could do.
        array: The array's controller.
        loader: The loader.
        drainer: The drainer.
    """

    pes: float
    array: float
    loader: float
    drainer: float


@dataclass(frozen=True)
class LayerRun:
    """One layer's part of a batch on the RTL.

    Attributes:
        bit_exact: Whether outputs, gradients, weights and predictor equal the golden model's in every bit.
        cycles: Cycles of the RTL.
        model_cycles: Cycles by the formulas, moves included.
        no_stall_cycles: Cycles of the accelerator model, whose operands are in the buffers and whose tiles are whole.
        moved_words: Words between the chip and DRAM.
        use: How busy each core was.
    """

    bit_exact: bool
    cycles: int
    model_cycles: int
    no_stall_cycles: int
    moved_words: int
    use: Mapping[str, CoreUse]


@dataclass(frozen=True)
class LayerProgram:
    """A layer's part of a batch, ready to run.

    Attributes:
        network: The layer with random weights, and the predictor.
        images: Its inputs.
        grads: Gradients of its outputs.
        memory: Where they are in DRAM.
        design: The design.
        phase: The phase.
        cores: The design's cores.
        timing: DRAM's speed.
        expected: Cycles by the formulas.
        prepare_cycles: Cycles before the batch, in which what stays on the chip is loaded.
        prepare_words: Words that are moved in these.
    """

    network: IntegerNetwork
    images: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    grads: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    memory: MemoryMap
    design: Design
    phase: Phase
    cores: Mapping[str, CoreGeometry]
    timing: Timing
    expected: Mapping[str, CoreCycles]
    prepare_cycles: int
    prepare_words: int

    @property
    def model_cycles(self) -> int:
        """Cycles of the batch by the formulas."""
        return max(core.cycles for core in self.expected.values()) - self.prepare_cycles

    def run(
        self, simulator: Simulator, tell: Callable[[int], None] | None = None, vcd: Path | None = None
    ) -> tuple[bool, int, int]:
        """Run it: whether it is bit-exact, its cycles, and the words it moved; may write waveforms."""
        programs = BatchPrograms(self.design, self.cores, self.memory).batch(self.phase)
        dram = self.memory.filled(self.images, self.grads)
        bench = simulator(self.cores, self.timing)
        if isinstance(bench, Bench):
            bench.vcd = vcd
        traces = bench.run({unit: program.descriptors for unit, program in programs.items()}, dram, tell)
        cycles = max(trace.cycles for trace in traces.values()) - self.prepare_cycles
        moved = sum(trace.read_words + trace.written_words for trace in traces.values()) - self.prepare_words
        learns = self.design is not Design.BASELINE
        exact = is_exact(self.memory, dram, self.images, self.grads, self.phase, learns=learns)
        return exact, cycles, moved


@paused_collection()
def layer_program(
    op: LayerOp,
    design: Design,
    phase: Phase,
    cores: Mapping[str, CoreGeometry],
    timing: Timing,
    seed: int = 0,
    grid: int = PredictorShape().grid,
) -> LayerProgram:
    """Compile a layer's part of a batch, with random numbers.

    Raises:
        ValueError: If the RTL cannot run the layer, or a GP batch is asked of the baseline; names the layer.
    """
    try:
        if op.kind == "matmul":
            raise ValueError("is a product of two activations, which the RTL does not run; choose a layer with weights")
        layer, rng = convolution(op.shape), np.random.default_rng(seed)
        shifts = _shifts(layer, op.shape.batch, grid)
        network = random_network(
            [layer], rng, grid=grid, limit=_LIMIT, shifts=shifts, first_input_grad=Pass.INPUT_GRAD in op.passes
        )
        images = rng.integers(-_LIMIT, _LIMIT, (op.shape.batch, layer.c_in, *layer.image))
        grads = rng.integers(-_LIMIT, _LIMIT, (op.shape.batch, layer.c_out, *layer.out))
        memory = MemoryMap(network, op.shape.batch)
        builder = BatchPrograms(design, cores, memory)
        expected = program_cycles(builder.batch(phase), cores, timing)
        before = program_cycles(builder.batch(phase, parts=()), cores, timing)
    except ValueError as error:
        raise ValueError(f"layer {op.name}: {error}") from error
    prepare_cycles = max(core.cycles for core in before.values())
    prepare_words = sum(core.read_words + core.written_words for core in before.values())
    return LayerProgram(
        network, images, grads, memory, design, phase, cores, timing, expected, prepare_cycles, prepare_words
    )


def run_layer(
    op: LayerOp,
    program: LayerProgram,
    simulator: Simulator,
    tell: Callable[[int], None] | None = None,
    vcd: Path | None = None,
) -> LayerRun:
    """Run a compiled layer on the RTL; Amaranth's simulator can write its waveforms to a file."""
    exact, cycles, moved = program.run(simulator, tell, vcd)
    macs = _macs(op, program)
    return LayerRun(
        bit_exact=exact,
        cycles=cycles,
        model_cycles=program.model_cycles,
        no_stall_cycles=no_stall_cycles(
            [op], program.design, program.phase, program.cores, program.network.grid, program.timing
        ),
        moved_words=moved,
        use={
            unit: CoreUse(
                macs[unit] / (cycles * program.cores[unit].rows * program.cores[unit].columns),
                *(found.busy[which] / cycles for which in (Unit.ARRAY, Unit.LOADER, Unit.DRAINER)),
            )
            for unit, found in program.expected.items()
        },
    )


_LIMIT = 1000


def _shifts(layer: Convolution, samples: int, grid: int) -> Shifts:
    """Shifts that keep the spread of every kind of sum near that of the operands."""

    def of(terms: int) -> int:
        return (isqrt(terms) * _LIMIT // 3).bit_length()

    positions = samples * prod(layer.out)
    return Shifts(
        forward=of(layer.row),
        input_grad=of(layer.c_out // layer.groups * layer.taps),
        update=of(positions) + 4,
        error=of(positions),
        pool=of(layer.row * positions),
        hidden=of(9),
        predicted=of(grid * grid),
        predicted_update=of(grid * grid) + 4,
        hidden_grad=of(layer.row),
        learn=of(layer.c_out) + 4,
    )


def _macs(op: LayerOp, program: LayerProgram) -> dict[str, int]:
    """Multiply-accumulates of each core that the result needs."""
    gp, learns = program.phase is Phase.GP, program.design is not Design.BASELINE
    passes = [Pass.FORWARD] if gp else [which for which in Pass if which in op.passes]
    layer = sum(op.shape.gemm(which).macs for which in passes)
    small, last = PredictorShape(grid=program.network.grid).layers(op)
    predictor = 0
    if learns:
        predictor = small.gemm(Pass.FORWARD).macs + last.gemm(Pass.FORWARD).macs
        if not gp:
            predictor += small.gemm(Pass.WEIGHT_GRAD).macs + last.gemm(Pass.WEIGHT_GRAD).macs
            predictor += last.gemm(Pass.INPUT_GRAD).macs
    if PREDICTOR in program.cores:
        return {MAIN: layer, PREDICTOR: predictor}
    return {MAIN: layer + predictor}
