"""Sweeps: the same training under all combinations of changed assumptions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from adagp.accelerator.designs import Design
from adagp.accelerator.energy import CostTable
from adagp.accelerator.setting import SWEPT, Setting, changed_by_text
from adagp.accelerator.simulation import Simulation
from adagp.accelerator.workload import LayerOp


@dataclass(frozen=True)
class Point:
    """One setting of a sweep and its figures; a whole `Simulation` per point would take too much memory.

    Attributes:
        values: Values of the parameters swept over.
        cycles: Cycles of an average batch on each design.
        speed_ups: Speed-up of each design over the baseline.
        energy_saved: Share of the baseline's memory energy that each design saves.
    """

    values: dict[str, str]
    cycles: dict[Design, float]
    speed_ups: dict[Design, float]
    energy_saved: dict[Design, float]


def parse_ranges(texts: Sequence[str]) -> dict[str, list[str]]:
    """The parameters of a sweep and their values, from texts such as `batch=16,64`.

    Raises:
        ValueError: If a text has another form, or a parameter is unknown or has no values.
    """
    ranges: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name in ranges:
            raise ValueError(
                f"sweep: '{text}' is not NAME=A,B,C, or its name is given twice; give for example batch=16,64"
            )
        ranges[name] = values.split(",")
    _check(ranges)
    return ranges


def sweep(
    network_of: Callable[[int], Sequence[LayerOp]],
    setting: Setting,
    ranges: Mapping[str, Sequence[str]],
    table: CostTable,
) -> list[Point]:
    """Every combination of the values, the last parameter changing fastest.

    Args:
        network_of: Gives the network's operations for a batch size.
        setting: The values that are not swept over.
        ranges: Values of some of `SWEPT`, as text as on the command line.
        table: Energy of a memory access.

    Raises:
        ValueError: If a parameter is unknown or a value is not allowed.
    """
    _check(ranges)
    points = []
    for combination in product(*ranges.values()):
        values = dict(zip(ranges, combination, strict=True))
        chosen = setting
        for name, value in values.items():
            chosen = changed_by_text(chosen, name, value)
        points.append(_point(values, chosen.simulate(network_of), table))
    return points


def _check(ranges: Mapping[str, Sequence[str]]) -> None:
    for name, texts in ranges.items():
        if name not in SWEPT:
            raise ValueError(f"sweep: '{name}' cannot be swept over; choose from {', '.join(SWEPT)}")
        if not texts or not all(texts):
            raise ValueError(f"sweep: {name} has no values; give for example {name}=16,32")


def _point(values: dict[str, str], simulation: Simulation, table: CostTable) -> Point:
    return Point(
        values,
        {design: run.batch_cycles for design, run in simulation.items()},
        {design: simulation.speed_up(design) for design in simulation},
        {design: simulation.energy_saved(design, table) for design in simulation},
    )
