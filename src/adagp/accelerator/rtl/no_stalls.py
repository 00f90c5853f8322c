"""The accelerator model's cycles of batches that the RTL runs: without moves, tiles whole."""

from collections.abc import Mapping, Sequence

from adagp.accelerator.array import Array
from adagp.accelerator.array_tasks import batch_tasks
from adagp.accelerator.designs import Design, batch_steps
from adagp.accelerator.layer_costs import network_costs
from adagp.accelerator.machine import Machine
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.top import MAIN, PREDICTOR
from adagp.accelerator.shapes import Pass
from adagp.accelerator.workload import LayerOp, PredictorShape
from adagp.schedules import Phase
from adagp.schedules.plan import BACKPROP, Plan


def no_stall_cycles(
    ops: Sequence[LayerOp],
    design: Design,
    phase: Phase,
    cores: Mapping[str, CoreGeometry],
    grid: int = PredictorShape().grid,
    timing: Timing | None = None,
) -> int:
    """Cycles of a batch by the accelerator model; of DRAM's timing it takes the bandwidth, for LOW's reloads."""
    main, second = cores[MAIN], cores.get(PREDICTOR, cores[MAIN])
    machine = Machine(
        array=Array(main.rows, main.columns),
        second_array=Array(second.rows, second.columns),
        predictor=PredictorShape(grid=grid),
        dram_words_per_cycle=(timing or Timing()).bandwidth_words,
    )
    plan = Plan(Phase.GP, "predicted") if phase is Phase.GP else BACKPROP
    tasks = batch_tasks(ops, plan, learning=design is not Design.BASELINE)
    return sum(step.cycles for step in batch_steps(design, network_costs(ops, machine), tasks, machine))


def layer_ops(layers: Sequence[Convolution], samples: int) -> list[LayerOp]:
    """Layers of the RTL as the accelerator model takes them; the first has no input gradient."""
    return [
        LayerOp(
            f"layer{index}",
            "linear" if layer.image == (1, 1) else "convolution",
            layer.shape(samples),
            tuple(Pass) if index else (Pass.FORWARD, Pass.WEIGHT_GRAD),
            covered=True,
        )
        for index, layer in enumerate(layers)
    ]
