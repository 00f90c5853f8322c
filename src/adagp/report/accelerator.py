"""Results of the accelerator model: tables with their assumptions, and plain values for JSON and CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from adagp.accelerator import (
    COST_TABLES,
    EPOCH_STEPS,
    CostTable,
    Design,
    DesignRun,
    Machine,
    Pass,
    PassCost,
    Simulation,
)
from adagp.accelerator.search import BestArray
from adagp.accelerator.sweep import Point
from adagp.report.table import Table

ADAGP = (Design.LOW, Design.EFFICIENT, Design.MAX)
Record = dict[str, Any]
_SPEED_UPS = tuple(f"x {design.value}" for design in ADAGP)


def assumptions(
    machine: Machine, batch: int | None = None, epochs: int | None = None, schedule: str = "the paper's ladder"
) -> tuple[str, ...]:
    """Everything a figure depends on, in a few lines; a batch or epochs that vary are left out."""
    array, second, predictor = machine.array, machine.second_array, machine.predictor
    several = "s" if predictor.channels > 1 else ""
    scale = [
        *([f"batch {batch}"] if batch is not None else []),
        *([f"{epochs} epochs of {schedule} ({EPOCH_STEPS} batches stand for one)"] if epochs else []),
        f"predictor {predictor.grid}x{predictor.grid} and {predictor.channels} channel{several}",
    ]
    bandwidth = f"{machine.dram_words_per_cycle} words a cycle"
    stalls = f"stalls on memory at {bandwidth}" if machine.stalls else f"no stalls; LOW reloads at {bandwidth}"
    if machine.tiles:
        stalls = f"tiles and moves as in the RTL, at {bandwidth}, latency {machine.dram_latency_cycles}"
    vector = "at no cost" if machine.vector_lanes is None else f"on {machine.vector_lanes} lanes"
    memory = f"buffer {array.buffer_words:,} words; MAX's second array {second}"
    return (
        "; ".join(scale),
        f"{array} PEs, {machine.dataflow}, {memory}",
        f"{stalls}; norms, activations, pooling, optimizer {vector}",
    )


def energy_note(machine: Machine, table: CostTable) -> str:
    """A note about what an energy counts."""
    name = next(name for name, known in COST_TABLES.items() if known == table)
    return f"energy: DRAM and buffer accesses, policy '{machine.policy}', table '{name}', unit {table.unit}"


def design_table(title: str, simulation: Simulation, table: CostTable, batches: int, notes: tuple[str, ...]) -> Table:
    """The designs side by side, for a training of this number of batches."""
    rows = [
        (
            design.value,
            short(run.batch_cycles * batches),
            f"{simulation.speed_up(design):.3f}",
            short(run.dram_words / run.count * batches),
            short(run.energy(table) / run.count * batches),
            f"{100 * simulation.energy_saved(design, table):.1f}",
        )
        for design, run in simulation.items()
    ]
    columns = ("design", "cycles", "speed-up", "DRAM words", "energy", "saved %")
    return Table(title, columns, rows, (f"of {batches:,} batches", *notes))


def layer_table(simulation: Simulation, table: CostTable) -> Table:
    """Every layer on every design, for an average batch."""
    count = simulation.baseline.count
    cycles = {design: run.layer_cycles() for design, run in simulation.items()}
    energies = {design: run.layer_energy(table) for design, run in simulation.items()}
    plain, spent = cycles[Design.BASELINE], energies[Design.BASELINE]
    rows = [
        (
            name or "(model)",
            *(short(cycles[design][name] / count) for design in simulation),
            f"{plain[name] / cycles[Design.MAX][name]:.2f}",
            short(spent[name] / count),
            f"{100 * (1 - energies[Design.EFFICIENT][name] / spent[name]):.1f}",
        )
        for name in plain
    ]
    columns = ("layer", *(design.value for design in simulation), _SPEED_UPS[-1], "energy", "saved %")
    return Table(
        "Layer by layer, of an average batch",
        columns,
        rows,
        (
            "cycles on each design, the predictor's with the layer it is for; under MAX only those it adds",
            "x: speed-up over the baseline; energy: the baseline's; saved: of it by efficient",
        ),
    )


def search_table(
    title: str,
    found: Sequence[BestArray],
    rows: Sequence[tuple[Machine, Simulation]],
    notes: tuple[str, ...],
) -> Table:
    """The best array of each dataflow, then the machine as given, and what ADA-GP gives on each."""
    fastest = min(simulation.baseline.cycles for _, simulation in rows)
    return Table(
        title,
        ("dataflow", "array", "PEs", "baseline", "of best", *_SPEED_UPS, "max"),
        [
            (
                machine.dataflow,
                str(machine.array),
                str(machine.array.pes),
                short(simulation.baseline.batch_cycles),
                f"{simulation.baseline.cycles / fastest:.3f}",
                *(f"{simulation.speed_up(design):.3f}" for design in ADAGP),
                short(simulation[Design.MAX].batch_cycles),
            )
            for machine, simulation in rows
        ],
        (
            "array: the fastest for plain backpropagation; baseline, max: cycles of an average batch there",
            "of best: the baseline over the fastest one; x: ADA-GP's speed-up over the baseline of the same array",
            "shapes weighed: " + ", ".join(f"{best.dataflow} {best.tried}" for best in found),
            f"the last row: the array that was given, under {rows[-1][0].dataflow}",
            *notes,
        ),
        text_columns=2,
    )


def pass_table(title: str, costs: Mapping[Pass, PassCost], dataflow: str) -> Table:
    """The three passes of one layer."""
    words = (
        "DRAM words: of the mapping of least energy, padding included"
        if dataflow == "rs"
        else "DRAM words: each tensor once, without padding"
    )
    return Table(
        title,
        ("pass", "cycles", "MACs", "utilisation %", "DRAM words", "buffer words"),
        [
            (
                which.value.replace("_", " "),
                f"{cost.cycles:,}",
                f"{cost.macs:,}",
                f"{100 * cost.utilisation:.1f}",
                f"{cost.dram_words:,}",
                f"{cost.buffer_words:,}",
            )
            for which, cost in costs.items()
        ],
        ("cycles: without stalls on memory", words),
    )


def sweep_table(title: str, points: Sequence[Point], notes: tuple[str, ...]) -> Table:
    """Every point of a sweep."""
    names = list(points[0].values)
    return Table(
        title,
        (*names, "baseline", *_SPEED_UPS, "energy saved %"),
        [
            (
                *point.values.values(),
                short(point.cycles[Design.BASELINE]),
                *(f"{point.speed_ups[design]:.3f}" for design in ADAGP),
                f"{100 * point.energy_saved[Design.EFFICIENT]:.1f}",
            )
            for point in points
        ],
        (
            "baseline: cycles of a batch; x: speed-up over it; energy saved: by efficient",
            *notes,
        ),
        text_columns=len(names),
    )


def short(value: float) -> str:
    """Four digits and a prefix: 18.70T."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 999.95 or prefix == "E":
            break
        value /= 1000
    return f"{value:#.4g}{prefix}" if prefix else f"{value:g}"


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
            "scale": batch.scale,
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
