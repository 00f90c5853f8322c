"""A whole training on every design, driven by the same schedule objects that drive training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from adagp.accelerator.array_tasks import ArrayTask, batch_tasks
from adagp.accelerator.designs import Design, Step, Traffic, batch_steps, batch_traffic
from adagp.accelerator.energy import CostTable
from adagp.accelerator.layer_costs import LayerCosts, network_costs
from adagp.accelerator.machine import Machine
from adagp.accelerator.resizing import resize
from adagp.accelerator.workload import LayerOp
from adagp.schedules import Ladder, Phase, Plan, Progressive, always_backprop
from adagp.schedules.plan import BACKPROP
from adagp.schedules.sources import spec

PREDICTED = Plan(Phase.GP, "predicted")
"""A GP batch of ADA-GP's."""


@dataclass(frozen=True)
class BatchKind:
    """One kind of batch on one design, and how often it occurs in a training.

    Attributes:
        phase: Phase of the batch.
        scale: Fraction of their size that its samples have; 1 unless it is coarse.
        count: Number of such batches in the training.
        steps: The steps of one batch, in order.
        traffic: Memory traffic of every layer.
    """

    phase: Phase
    scale: float
    count: int
    steps: tuple[Step, ...]
    traffic: tuple[Traffic, ...]

    @property
    def label(self) -> str:
        """Its phase, with the scale of a coarse batch: `BP@0.5`."""
        return self.phase.value if self.scale == 1 else f"{self.phase.value}@{self.scale:g}"

    @property
    def cycles(self) -> int:
        """Cycles of one such batch."""
        return sum(step.cycles for step in self.steps)

    @property
    def dram_words(self) -> int:
        """DRAM words of one such batch."""
        return sum(layer.dram_words for layer in self.traffic)

    @property
    def buffer_words(self) -> int:
        """Buffer words of one such batch."""
        return sum(layer.buffer_words for layer in self.traffic)

    def energy(self, table: CostTable) -> float:
        """Energy of its memory accesses, in the table's unit."""
        return self.dram_words * table.dram + self.buffer_words * table.buffer


@dataclass(frozen=True)
class DesignRun:
    """A training on one design.

    Attributes:
        design: The design.
        batches: Its kinds of batches.
    """

    design: Design
    batches: tuple[BatchKind, ...]

    @property
    def count(self) -> int:
        """Number of batches."""
        return sum(batch.count for batch in self.batches)

    @property
    def cycles(self) -> int:
        """Cycles of all batches."""
        return sum(batch.count * batch.cycles for batch in self.batches)

    @property
    def batch_cycles(self) -> float:
        """Cycles of an average batch."""
        return self.cycles / self.count

    @property
    def dram_words(self) -> int:
        """DRAM words of all batches."""
        return sum(batch.count * batch.dram_words for batch in self.batches)

    @property
    def buffer_words(self) -> int:
        """Buffer words of all batches."""
        return sum(batch.count * batch.buffer_words for batch in self.batches)

    def energy(self, table: CostTable) -> float:
        """Energy of all memory accesses, in the table's unit."""
        return self.dram_words * table.dram + self.buffer_words * table.buffer

    def layer_cycles(self, *phases: Phase) -> dict[str, int]:
        """Cycles of every layer in all batches of the given phases; all phases if none is given.

        The predictor's cycles count for the layer it serves; under MAX only those in which nothing else runs.
        """
        found: dict[str, int] = {}
        for batch in self.batches:
            if batch.phase in (phases or Phase):
                for step in batch.steps:
                    for name, cycles in (
                        (step.layer, step.layer_cycles),
                        (step.predictor_layer, step.cycles - step.layer_cycles),
                    ):
                        if cycles:
                            found[name] = found.get(name, 0) + batch.count * cycles
        return found

    def layer_energy(self, table: CostTable) -> dict[str, float]:
        """Energy of every layer's memory accesses in all batches, its predictor's included."""
        found: dict[str, float] = {}
        for batch in self.batches:
            for layer in batch.traffic:
                energy = layer.dram_words * table.dram + layer.buffer_words * table.buffer
                found[layer.layer] = found.get(layer.layer, 0.0) + batch.count * energy
        return found


@dataclass(frozen=True, eq=False)
class Simulation(Mapping[Design, DesignRun]):
    """The same training on several designs, and how they compare.

    Attributes:
        runs: The training on each design.
    """

    runs: Mapping[Design, DesignRun]

    def __getitem__(self, design: Design) -> DesignRun:
        """The training on a design."""
        return self.runs[design]

    def __iter__(self) -> Iterator[Design]:
        """The designs."""
        return iter(self.runs)

    def __len__(self) -> int:
        """The number of designs."""
        return len(self.runs)

    @property
    def baseline(self) -> DesignRun:
        """Plain backpropagation, which the designs are compared with."""
        return self.runs[Design.BASELINE]

    def speed_up(self, design: Design) -> float:
        """How many times faster a design is than the baseline."""
        return self.baseline.cycles / self.runs[design].cycles

    def energy_saved(self, design: Design, table: CostTable) -> float:
        """Share of the baseline's memory energy that a design saves."""
        return 1 - self.runs[design].energy(table) / self.baseline.energy(table)


def plans(schedule: Callable[[int], Plan], steps: int) -> list[tuple[Plan, int]]:
    """The distinct plans of a schedule's first steps with their counts; plans that differ in the note alone are one."""
    # These never change, and many networks share one.
    unchanging = isinstance(schedule, Ladder | Progressive)
    return list(_counted_once(schedule, steps) if unchanging else _counted(schedule, steps))


def _counted(schedule: Callable[[int], Plan], steps: int) -> tuple[tuple[Plan, int], ...]:
    found: dict[tuple[object, ...], tuple[Plan, int]] = {}
    for step in range(steps):
        plan = schedule(step)
        key = plan.phase, plan.default, tuple(sorted(plan.overrides.items())), plan.scale
        first, count = found.get(key, (plan, 0))
        found[key] = first, count + 1
    return tuple(found.values())


_counted_once = cache(_counted)


def simulate(
    ops: Sequence[LayerOp],
    schedule: Callable[[int], Plan],
    steps: int,
    machine: Machine | None = None,
    designs: Iterable[Design] = tuple(Design),
) -> Simulation:
    """Simulate a training on each design; the baseline has the same number of batches of plain backpropagation.

    Args:
        ops: The network, from `networks.network` or `trace`.
        schedule: The object that would drive the training.
        steps: Number of batches.
        machine: The accelerator; by default the paper's 180 PEs with our assumptions.
        designs: The designs to simulate.
    """
    machine = machine or Machine()
    counted = plans(schedule, steps)
    layers = _sized_costs(ops, {1.0, *(plan.scale for plan, _ in counted)}, machine)
    return Simulation(
        {
            design: _run(design, ops, layers, [(always_backprop()(0), steps)], False, machine)
            if design is Design.BASELINE
            else _run(design, ops, layers, counted, learns_predictor(schedule), machine)
            for design in designs
        }
    )


def batch_kinds(
    ops: Sequence[LayerOp], machine: Machine | None = None, scale: float | None = None
) -> dict[Design, tuple[BatchKind, ...]]:
    """One batch of each kind on every design: BP, GP, and BP with samples at `scale` times their size, if given.

    The predictor learns in a full BP batch and rests in a coarse one. The baseline has no GP batch.
    """
    machine = machine or Machine()
    coarse = [] if scale is None else [(Plan(Phase.BP, "backprop", scale=scale), 1)]
    layers = _sized_costs(ops, {1.0, *(plan.scale for plan, _ in coarse)}, machine)
    predicted = {design: [] if design is Design.BASELINE else [(PREDICTED, 1)] for design in Design}
    return {
        design: _run(design, ops, layers, [(BACKPROP, 1), *gp, *coarse], design is not Design.BASELINE, machine).batches
        for design, gp in predicted.items()
    }


def _sized_costs(ops: Sequence[LayerOp], scales: Iterable[float], machine: Machine) -> dict[float, list[LayerCosts]]:
    return {scale: network_costs(resize(ops, scale), machine) for scale in scales}


def learns_predictor(schedule: Callable[[int], Plan]) -> bool:
    """Whether the schedule ever predicts; otherwise there is no predictor to train."""
    return any(spec(name).needs_features for name in getattr(schedule, "sources", ("predicted",)))


def _run(
    design: Design,
    ops: Sequence[LayerOp],
    layers: Mapping[float, Sequence[LayerCosts]],
    counted: Sequence[tuple[Plan, int]],
    learning: bool,
    machine: Machine,
) -> DesignRun:
    batches = []
    known: dict[tuple[float, tuple[ArrayTask, ...]], tuple[tuple[Step, ...], tuple[Traffic, ...]]] = {}
    for plan, count in counted:
        asked = tuple(batch_tasks(ops, plan, learning))
        if (plan.scale, asked) not in known:  # a warm-up batch asks for the same as a BP batch
            sized = layers[plan.scale]
            steps = tuple(batch_steps(design, sized, asked, machine))
            known[plan.scale, asked] = steps, tuple(batch_traffic(design, sized, asked))
        batches.append(BatchKind(plan.phase, plan.scale, count, *known[plan.scale, asked]))
    return DesignRun(design, tuple(batches))
