"""A network as balanced stages of a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from adagp.accelerator.array_tasks import ArrayTask, batch_tasks
from adagp.accelerator.designs import BACKWARD, FORWARD, Design, batch_steps
from adagp.accelerator.layer_costs import LayerCosts, network_costs
from adagp.accelerator.machine import Machine
from adagp.accelerator.pipeline.costs import Costs
from adagp.accelerator.resizing import resize
from adagp.accelerator.simulation import PREDICTED
from adagp.accelerator.workload import LayerOp
from adagp.schedules.plan import BACKPROP

_Times = tuple[tuple[int, ...], tuple[int, ...]]  # cycles of each stage's forward and backward


@dataclass(frozen=True)
class StagePartition:
    """A network cut into stages.

    Attributes:
        cuts: The first layer of each stage, and the number of layers.
        plain: Cycles of a micro-batch by plain backpropagation.
        predicting: Cycles of a micro-batch with the predictor, in BP, where it learns, and in GP.
        coarse: Cycles of a micro-batch of smaller samples by plain backpropagation; None if no scale was given.
    """

    cuts: tuple[int, ...]
    plain: Costs
    predicting: Costs
    coarse: Costs | None = None

    @property
    def imbalance(self) -> float:
        """Length of the longest stage over the mean length, in plain backpropagation."""
        stages = [ahead + back for ahead, back in zip(self.plain.bp_forward, self.plain.bp_backward, strict=True)]
        return max(stages) * len(stages) / sum(stages)


def stages(
    ops: Sequence[LayerOp], devices: int, design: Design, machine: Machine, scale: float | None = None
) -> StagePartition:
    """Cut a network into as many stages as devices, and give their cycles on a design.

    Layers stay in the order of the forward, and each belongs to one stage. The longest stage is as short as possible,
    in cycles of a forward and a backward without a predictor. A cut may cross branches, and the data sent over it is
    not modelled.

    Args:
        ops: The operations of one micro-batch.
        devices: The number of stages.
        design: The design of every device; it is compared with BASELINE.
        machine: The machine of every device.
        scale: The fraction of their size that samples have in coarse batches. The cuts are those of full samples.

    Raises:
        ValueError: If the design has no predictor, there are fewer layers than devices, or the network cannot take
            samples of that scale.
    """
    if design is Design.BASELINE:
        raise ValueError("design=baseline: has no predictor; choose low, efficient or max")
    layers = network_costs(ops, machine)
    exact = batch_tasks(ops, BACKPROP, learning=False)
    alone = [sum(_cycles(Design.BASELINE, [layer], [task], machine)) for layer, task in zip(layers, exact, strict=True)]
    cuts = balanced_cuts(alone, devices)

    def per_stage(on: Design, tasks: Sequence[ArrayTask], costs: Sequence[LayerCosts]) -> _Times:
        cycles = [_cycles(on, costs[start:end], tasks[start:end], machine) for start, end in pairwise(cuts)]
        forward, backward = zip(*cycles, strict=True)
        return forward, backward

    plain = per_stage(Design.BASELINE, exact, layers)
    learning = per_stage(design, batch_tasks(ops, BACKPROP, learning=True), layers)
    predicted, _ = per_stage(design, batch_tasks(ops, PREDICTED, learning=True), layers)
    coarse = None
    if scale is not None:
        forward, backward = per_stage(Design.BASELINE, exact, network_costs(resize(ops, scale), machine))
        coarse = Costs(forward, backward, forward)
    return StagePartition(cuts, Costs(*plain, plain[0]), Costs(*learning, predicted), coarse)


def _cycles(
    design: Design, layers: Sequence[LayerCosts], tasks: Sequence[ArrayTask], machine: Machine
) -> tuple[int, int]:
    """Cycles of a stage's forward and backward."""
    steps = batch_steps(design, layers, tasks, machine)
    return (
        sum(step.cycles for step in steps if step.stage == FORWARD),
        sum(step.cycles for step in steps if step.stage == BACKWARD),
    )


def balanced_cuts(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """The `parts` + 1 places at which to cut a row of costs so that the largest part is smallest.

    Raises:
        ValueError: If there are fewer costs than parts.
    """
    if len(costs) < parts:
        raise ValueError(f"devices={parts}: the network has only {len(costs)} layers; use fewer devices")
    sums = [0, *accumulate(costs)]
    # best[end]: the largest part of the best cut of the first `end` costs into `part` parts, and its last cut.
    best = [(total, 0) for total in sums]
    chosen = [best]
    for part in range(2, parts + 1):
        best = [
            min(((max(best[cut][0], sums[end] - sums[cut]), cut) for cut in range(part - 1, end)), default=(0, 0))
            for end in range(len(sums))
        ]
        chosen.append(best)
    cuts = [len(costs)]
    for best in reversed(chosen):
        cuts.append(best[cuts[-1]][1])
    return tuple(reversed(cuts))
