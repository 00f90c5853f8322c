"""The speed-up of the designs as the RTL shows it: BP and GP batches of layers, and of a whole CNN on real images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.accelerator.designs import Design
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.layer_run import layer_program, run_layer
from adagp.accelerator.rtl.no_stalls import layer_ops, no_stall_cycles
from adagp.accelerator.rtl.simulators import choose_simulator
from adagp.accelerator.rtl.top import geometries
from adagp.accelerator.rtl.training import CNN, RtlTraining, initial_network
from adagp.accelerator.workload import LayerOp
from adagp.schedules import Phase

CASES = (
    (Design.BASELINE, Phase.BP),
    *((design, phase) for design in Design if design is not Design.BASELINE for phase in (Phase.BP, Phase.GP)),
)
"""Each design with each phase it has."""
SMALL_CNN = "small-cnn"
"""The name of `training.CNN`; its only part is the whole network."""
WHOLE = "whole"


@dataclass(frozen=True)
class Clocked:
    """One batch that was clocked on the RTL.

    Attributes:
        model: The network.
        layer: The layer, or `WHOLE`.
        batch: Samples.
        design: The design.
        phase: The phase.
        bit_exact: Whether everything equals the golden model in every bit.
        cycles: Cycles of the RTL.
        model_cycles: Cycles by the formulas, moves included.
        no_stall_cycles: Cycles of the accelerator model, without moves and tiles.
    """

    model: str
    layer: str
    batch: int
    design: str
    phase: str
    bit_exact: bool
    cycles: int
    model_cycles: int
    no_stall_cycles: int

    @property
    def case(self) -> tuple[str, str, int, str, str]:
        """What was clocked."""
        return self.model, self.layer, self.batch, self.design, self.phase

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Clocked":
        """From plain values, as `asdict` gives them.

        Raises:
            ValueError: If one is missing, unknown or of another type.
        """
        kinds = {field.name: field.type for field in fields(cls)}
        if set(values) != set(kinds) or any(type(value) is not kinds[name] for name, value in values.items()):
            raise ValueError(f"is not a clocked batch: {dict(values)}")
        return cls(**values)


@dataclass(frozen=True)
class SpeedUp:
    """One layer or network on one design, beside the baseline: one BP and one GP batch against two of plain BP.

    Attributes:
        part: Its batches, those of the baseline's first: plain BP, BP, GP.
    """

    part: tuple[Clocked, Clocked, Clocked]

    def of(self, count: Callable[[Clocked], int]) -> float:
        """The speed-up by one way to count cycles."""
        plain, bp, gp = map(count, self.part)
        return 2 * plain / (bp + gp)

    @property
    def rtl(self) -> float:
        """By the RTL."""
        return self.of(lambda batch: batch.cycles)

    @property
    def model(self) -> float:
        """By the formulas, moves included."""
        return self.of(lambda batch: batch.model_cycles)

    @property
    def no_stalls(self) -> float:
        """By the accelerator model, without moves and tiles."""
        return self.of(lambda batch: batch.no_stall_cycles)


def speed_ups(found: Sequence[Clocked]) -> Iterator[SpeedUp]:
    """The speed-up of each part and design that was clocked completely, in the order of the parts."""
    known = {batch.case: batch for batch in found}
    for part in dict.fromkeys(batch.case[:3] for batch in found):
        for design in Design:
            cases = ((Design.BASELINE, Phase.BP), (design, Phase.BP), (design, Phase.GP))
            batches = [known.get((*part, each.value, phase.value)) for each, phase in cases]
            if design is not Design.BASELINE and None not in batches:
                plain, bp, gp = (batch for batch in batches if batch is not None)
                yield SpeedUp((plain, bp, gp))


def clock_layer(
    model: str,
    op: LayerOp,
    design: Design,
    phase: Phase,
    timing: Timing,
    tell: Callable[[int, int], None],
    warn: Callable[[str], None],
) -> Clocked:
    """Clock one layer's part of a batch on the paper's 180 PEs.

    `tell` is told the cycles done and all of them, and `warn` how long a slow simulator takes.
    """
    program = layer_program(op, design, phase, geometries(design), timing)
    simulator = choose_simulator(program.model_cycles, program.cores, warn)
    found = run_layer(op, program, simulator, lambda cycle: tell(cycle, program.model_cycles))
    case = model, op.name, op.shape.batch, design.value, phase.value
    return Clocked(*case, found.bit_exact, found.cycles, found.model_cycles, found.no_stall_cycles)


def clock_cnn(
    images: Integers,
    labels: NDArray[np.int64],
    design: Design,
    phase: Phase,
    timing: Timing,
    warn: Callable[[str], None],
) -> Clocked:
    """Clock one batch of the small CNN on real images, from its initial weights; `warn` as in `clock_layer`."""
    samples, cores = len(images), geometries(design)
    network = initial_network(CNN, samples, seed=0)
    training = RtlTraining(network, samples, design, cores, timing)
    bench = choose_simulator(training.model_cycles(phase), cores, warn)(cores, timing)
    done = training.batch(bench, images, labels, phase)
    expected = no_stall_cycles(layer_ops(CNN, samples), design, phase, cores, network.grid, timing)
    case = SMALL_CNN, WHOLE, samples, design.value, phase.value
    return Clocked(*case, done.bit_exact, done.cycles, done.model_cycles, expected)


def plain(setting: Mapping[str, Any], found: Sequence[Clocked]) -> dict[str, Any]:
    """Everything that was clocked, for JSON."""
    return {**setting, "batches": [asdict(batch) for batch in found]}
