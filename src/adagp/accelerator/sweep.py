"""Sweeps: the same training with one assumption after the other changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from adagp.accelerator.designs import Design
from adagp.accelerator.energy import CostTable
from adagp.accelerator.machine import Machine
from adagp.accelerator.simulation import Run, paper_schedule, simulate
from adagp.accelerator.text import integer, parse_array
from adagp.accelerator.workload import Work


@dataclass(frozen=True)
class Setting:
    """All that a sweep may change.

    Attributes:
        batch: Samples in a batch.
        epochs: Of the paper's ladder.
        machine: The machine.
    """

    batch: int
    epochs: int
    machine: Machine


_CHANGES: Mapping[str, Callable[[Setting, str], Setting]] = {
    "batch": lambda setting, value: replace(setting, batch=integer("batch", value)),
    "epochs": lambda setting, value: replace(setting, epochs=integer("epochs", value)),
    "grid": lambda setting, value: _with(
        setting, predictor=replace(setting.machine.predictor, grid=integer("grid", value))
    ),
    "channels": lambda setting, value: _with(
        setting, predictor=replace(setting.machine.predictor, channels=integer("channels", value))
    ),
    "array": lambda setting, value: _with(setting, array=parse_array("array", value, setting.machine.array)),
    "second-array": lambda setting, value: _with(
        setting, second_array=parse_array("second-array", value, setting.machine.second_array)
    ),
    "dataflow": lambda setting, value: _with(setting, dataflow=value),
    "policy": lambda setting, value: _with(setting, policy=value),
    "bandwidth": lambda setting, value: _with(setting, dram_words_per_cycle=integer("bandwidth", value)),
    "buffer-words": lambda setting, value: _with(
        setting, array=replace(setting.machine.array, buffer_words=integer("buffer-words", value))
    ),
}
PARAMETERS = tuple(_CHANGES)
"""What can be swept over."""


def _with(setting: Setting, **changes: object) -> Setting:
    return replace(setting, machine=replace(setting.machine, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Point:
    """One setting of a sweep and what came out.

    Attributes:
        values: Of the parameters swept over.
        cycles: Of an average batch on each design.
        speed_ups: Of each design over the baseline.
        energy_saved: Share of the baseline's memory energy that each design saves.
    """

    values: dict[str, str]
    cycles: dict[Design, float]
    speed_ups: dict[Design, float]
    energy_saved: dict[Design, float]


def sweep(
    network_of: Callable[[int], Sequence[Work]],
    setting: Setting,
    ranges: Mapping[str, Sequence[str]],
    table: CostTable,
) -> list[Point]:
    """Every combination of the values, the last parameter changing fastest.

    Args:
        network_of: The work of a batch of a given size.
        setting: What is not swept over.
        ranges: Values as text, as the command line takes them, of any of `PARAMETERS`.
        table: Of energy.

    Raises:
        ValueError: for an unknown parameter or a value it cannot have.
    """
    for name, texts in ranges.items():
        if name not in _CHANGES:
            raise ValueError(f"sweep: '{name}' cannot be swept over; choose from {', '.join(PARAMETERS)}")
        if not texts or not all(texts):
            raise ValueError(f"sweep: {name} has no values; give for example {name}=16,32")
    points = []
    for combination in product(*ranges.values()):
        values = dict(zip(ranges, combination, strict=True))
        chosen = setting
        for name, value in values.items():
            chosen = _CHANGES[name](chosen, value)
        runs = simulate(network_of(chosen.batch), *paper_schedule(chosen.epochs), chosen.machine)
        points.append(_point(values, runs, table))
    return points


def _point(values: dict[str, str], runs: Mapping[Design, Run], table: CostTable) -> Point:
    baseline = runs[Design.BASELINE]
    return Point(
        values,
        {design: run.cycles / run.count for design, run in runs.items()},
        {design: baseline.cycles / run.cycles for design, run in runs.items()},
        {design: 1 - run.energy(table) / baseline.energy(table) for design, run in runs.items()},
    )
