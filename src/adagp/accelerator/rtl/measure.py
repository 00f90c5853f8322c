"""Cycles of whole batches, measured on the RTL and as the accelerator model counts them.

The model counts products, and the words that LOW loads. The RTL also loads operands, drains results and accepts
descriptors, in every design alike. So totals differ, but differences between designs must be those of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adagp.accelerator.array import Array
from adagp.accelerator.array_tasks import batch_tasks
from adagp.accelerator.designs import Design, batch_steps
from adagp.accelerator.layer_costs import network_costs
from adagp.accelerator.machine import Machine
from adagp.accelerator.rtl.batches import Stage, bp_stages, gp_stages, plain_stages, predictor_passes, run_batch
from adagp.accelerator.rtl.descriptor import OVERHEAD_CYCLES, Op
from adagp.accelerator.rtl.driver import Command
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.integer_network import IntegerBatch, IntegerNetwork
from adagp.accelerator.rtl.lowering import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.top import MAIN, PREDICTOR
from adagp.accelerator.shapes import Pass
from adagp.accelerator.workload import LayerOp, PredictorShape
from adagp.schedules import Phase
from adagp.schedules.plan import BACKPROP, Plan

LAYERS = (Convolution(1, 2, (4, 4), (3, 3), 1, 1), Convolution(2, 3, (4, 4), (3, 3), 2, 1), Convolution(12, 4))
"""A network small enough to simulate in seconds: two convolutions and a linear layer."""
SAMPLES, GRID = 2, 2
_CORE = CoreGeometry(4, 3, input_depth=512, weight_depth=256, output_depth=128)
_SECOND = CoreGeometry(3, 2, input_depth=256, weight_depth=512, output_depth=128)


@dataclass(frozen=True)
class BatchCycles:
    """Cycles of one batch on one design. With two cores, the slower one counts in each stage.

    Attributes:
        design: The design.
        phase: The batch's phase.
        measured: Cycles on the RTL, from the first descriptor until all cores are done.
        products: Those in which the array computes.
        moves: Those that load operands and drain results.
        descriptors: Those that accept descriptors and wait for their last result.
        model: Cycles by the accelerator model.
    """

    design: Design
    phase: Phase
    measured: int
    products: int
    moves: int
    descriptors: int
    model: int


def small_cores(design: Design) -> dict[str, CoreGeometry]:
    """The cores of a design at a size that is quick to simulate."""
    match design:
        case Design.BASELINE:
            return {MAIN: _CORE}
        case Design.LOW:
            return {MAIN: replace(_CORE, pools=True)}
        case Design.EFFICIENT:
            return {MAIN: replace(_CORE, pools=True, predictor_depth=256)}
        case Design.MAX:
            return {MAIN: replace(_CORE, pools=True), PREDICTOR: _SECOND}


def small_batch(seed: int = 0) -> tuple[IntegerNetwork, IntegerBatch]:
    """The small network with random weights, and a batch; values are so large that some sums saturate."""
    rng = np.random.default_rng(seed)

    def values(*size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return rng.integers(-3000, 3000, size)

    weights = [values(layer.c_out, layer.c_in, *layer.kernel) for layer in LAYERS]
    longest = max(layer.row for layer in LAYERS)
    network = IntegerNetwork(LAYERS, weights, values(1, 1, 3, 3), values(GRID * GRID + 1, longest), GRID)
    last = len(LAYERS) - 1
    output = (SAMPLES, LAYERS[last].c_out, *LAYERS[last].out)
    return network, IntegerBatch({0: values(SAMPLES, LAYERS[0].c_in, *LAYERS[0].image)}, grads={last: values(*output)})


def batch_stages(
    design: Design, phase: Phase, network: IntegerNetwork, batch: IntegerBatch, cores: Mapping[str, CoreGeometry]
) -> list[Stage]:
    """The stages of a batch on a design; the baseline has only backpropagation.

    Raises:
        ValueError: If a GP batch is asked of the baseline.
    """
    if design is Design.BASELINE:
        if phase is Phase.GP:
            raise ValueError("phase=GP: the baseline has no predictor; choose another design")
        return plain_stages(network, batch, cores)
    return (gp_stages if phase is Phase.GP else bp_stages)(network, batch, cores)


def measure(design: Design, phase: Phase) -> BatchCycles:
    """Run a batch of the small network on the RTL."""
    cores, (network, batch) = small_cores(design), small_batch()
    stages = batch_stages(design, phase, network, batch, cores)
    return account(design, phase, run_batch(Bench(cores), stages, predictor_passes(network, batch, cores)))


def account(design: Design, phase: Phase, measured: int) -> BatchCycles:
    """Break down the measured cycles of a batch of the small network."""
    cores = small_cores(design)
    stages = batch_stages(design, phase, *small_batch(), cores)
    slowest = [(cores[unit], command.descriptor) for unit, command in _critical(stages, cores)]
    products = sum(each.work_cycles(core) for core, each in slowest if each.op is Op.PRODUCT)
    return BatchCycles(
        design=design,
        phase=phase,
        measured=measured,
        products=products,
        moves=sum(each.work_cycles(core) for core, each in slowest) - products,
        descriptors=OVERHEAD_CYCLES * len(slowest),
        model=model_cycles(design, phase),
    )


def small_model() -> tuple[list[LayerOp], Machine]:
    """The small network and its machine for the accelerator model; LOW loads one row of the weight buffer per cycle."""
    ops = [
        LayerOp(
            f"layer{index}",
            "linear" if layer.image == (1, 1) else "convolution",
            layer.shape(SAMPLES),
            tuple(Pass) if index else (Pass.FORWARD, Pass.WEIGHT_GRAD),
            covered=True,
        )
        for index, layer in enumerate(LAYERS)
    ]
    machine = Machine(
        array=Array(_CORE.rows, _CORE.columns),
        second_array=Array(_SECOND.rows, _SECOND.columns),
        predictor=PredictorShape(grid=GRID),
        dram_words_per_cycle=_CORE.columns,
    )
    return ops, machine


def model_cycles(design: Design, phase: Phase) -> int:
    """Cycles of a batch of the small network by the accelerator model."""
    ops, machine = small_model()
    plan = Plan(Phase.GP, "predicted") if phase is Phase.GP else BACKPROP
    tasks = batch_tasks(ops, plan, learning=design is not Design.BASELINE)
    return sum(step.cycles for step in batch_steps(design, network_costs(ops, machine), tasks, machine))


def _critical(stages: Sequence[Stage], cores: Mapping[str, CoreGeometry]) -> list[tuple[str, Command]]:
    """The commands of the slower core of each stage."""
    found = []
    for stage in stages:
        cycles = {
            unit: sum(command.descriptor.cycles(cores[unit]) for command in commands)
            for unit, commands in stage.items()
        }
        slower = max(cycles, key=lambda unit: cycles[unit])
        found += [(slower, command) for command in stage[slower]]
    return found
