"""Results of the accelerator model for programs: plain dictionaries for JSON, and records for CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from adagp.accelerator import CostTable, Design, DesignRun, Machine, Pass, PassCost, Simulation
from adagp.accelerator.search import BestArray
from adagp.accelerator.sweep import Point

Record = dict[str, Any]


def design_facts(simulation: Simulation, table: CostTable, batches: int) -> dict[str, Record]:
    """Every design, for a training of this number of batches."""
    return {design.value: _design(simulation, design, table, batches) for design in simulation}


def _design(simulation: Simulation, design: Design, table: CostTable, batches: int) -> Record:
    run = simulation[design]
    scale = batches / run.count
    cycles, energies = run.layer_cycles(), run.layer_energy(table)
    return {
        "cycles": round(run.cycles * scale),
        "speed_up": simulation.speed_up(design),
        "dram_words": round(run.dram_words * scale),
        "buffer_words": round(run.buffer_words * scale),
        "energy": run.energy(table) * scale,
        "energy_saved": simulation.energy_saved(design, table),
        "phases": _phases(run),
        "layers": [
            {"layer": name, "cycles": round(cycles[name] * scale), "energy": energies.get(name, 0.0) * scale}
            for name in cycles
        ],
    }


def _phases(run: DesignRun) -> list[Record]:
    return [
        {
            "phase": batch.phase.value,
            "share": batch.count / run.count,
            "batch_cycles": batch.cycles,
            "batch_dram_words": batch.dram_words,
            "batch_buffer_words": batch.buffer_words,
        }
        for batch in run.batches
    ]


def layer_records(network: str, designs: Mapping[str, Record]) -> list[Record]:
    """Every layer on every design, from `design_facts`."""
    return [
        {"network": network, "design": design, **layer}
        for design, facts in designs.items()
        for layer in facts["layers"]
    ]


def pass_facts(costs: Mapping[Pass, PassCost]) -> dict[str, Record]:
    """The passes of one layer."""
    return {which.value: asdict(cost) for which, cost in costs.items()}


def machine_facts(machine: Machine, simulation: Simulation, found: BestArray | None = None) -> Record:
    """An array of a search, or the one that was given, and what ADA-GP gives on it."""
    return {
        "dataflow": machine.dataflow,
        "rows": machine.array.rows,
        "columns": machine.array.columns,
        **({"tried": found.tried} if found else {}),
        "designs": {
            design.value: {"batch_cycles": run.batch_cycles, "speed_up": simulation.speed_up(design)}
            for design, run in simulation.items()
        },
    }


def point_facts(point: Point) -> Record:
    """One point of a sweep."""
    return {
        **point.values,
        "designs": {
            design.value: {
                "batch_cycles": point.cycles[design],
                "speed_up": point.speed_ups[design],
                "energy_saved": point.energy_saved[design],
            }
            for design in Design
        },
    }


def design_records(facts: Sequence[Record]) -> list[Record]:
    """One record for each design of each point or array."""
    return [
        {**{key: value for key, value in each.items() if key != "designs"}, "design": design, **figures}
        for each in facts
        for design, figures in each["designs"].items()
    ]


def records_csv(records: Sequence[Record]) -> str:
    """Records as CSV, every digit kept; a field that a record lacks is empty."""
    text = io.StringIO()
    lines = csv.DictWriter(text, list(records[0]), restval="", lineterminator="\n")
    lines.writeheader()
    lines.writerows(records)
    return text.getvalue()
