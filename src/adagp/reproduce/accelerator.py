"""Figures 16 to 19 and 21, tables 2 and 3, and the comparisons at equal power and area of the ADA-GP paper (001)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import fmean

from adagp.accelerator import (
    CNNS,
    COST_TABLES,
    IMAGE_SETS,
    POLICIES,
    Array,
    CostTable,
    Design,
    Setting,
    Simulation,
    network,
)
from adagp.accelerator.text import parse_array
from adagp.report.accelerator import ADAGP, assumptions, energy_note, short
from adagp.report.table import Table
from adagp.reproduce.coarse import SHORT
from adagp.schedules import Phase

Grid = Mapping[str, Mapping[str, Simulation]]
"""The training on every design, by data set and network."""

FIGURES: Mapping[int, str] = {17: "ws", 18: "rs", 19: "is"}
# Section 6.3: the average of MAX, and its maximum; for figure 19 the paper states averages only.
PAPER_AVERAGES: Mapping[int, Mapping[str, float]] = {
    17: {"cifar10": 1.46, "cifar100": 1.46, "imagenet": 1.48},
    18: {"cifar10": 1.46, "cifar100": 1.46, "imagenet": 1.47},
    19: {"cifar10": 1.46, "cifar100": 1.46, "imagenet": 1.48},
}
PAPER_MAXIMA: Mapping[int, Mapping[str, float]] = {
    17: {"cifar10": 1.51, "cifar100": 1.51, "imagenet": 1.58},
    18: {"cifar10": 1.48, "cifar100": 1.48, "imagenet": 1.48},
    19: {},
}
PAPER_ENERGY_SAVED = 0.34
# Tables 2 and 3, in 10^9 cycles, as printed.
PAPER_CYCLES: Mapping[int, Mapping[str, float]] = {
    2: {"baseline": 1245.87, "ADA-GP": 1104.31},
    3: {"baseline": 11490248, "efficient": 9846579, "max": 9134071},
}
TABLE_NETWORKS: Mapping[int, tuple[str, str]] = {2: ("transformer", "multi30k"), 3: ("yolo_v3", "voc2007")}
# Section 6.6.1: how many more PEs the baseline gets for MAX's power or area, and the average speed-up then, in %.
ISO: Mapping[str, tuple[float, Mapping[str, float]]] = {
    "power": (0.10, {"cifar10": 4.31, "cifar100": 4.3, "imagenet": 4.47}),
    "area": (0.11, {"cifar10": 4.63, "cifar100": 4.61, "imagenet": 5.53}),
}


def simulated(model: str, data: str, setting: Setting) -> Simulation:
    """A network's training on every design."""
    return setting.simulate(lambda batch: network(model, data, batch))


def grid(setting: Setting, tell: Callable[[str], None] = lambda text: None, sets: Sequence[str] = IMAGE_SETS) -> Grid:
    """The thirteen CNNs on the three data sets, or on some of them."""
    found: dict[str, dict[str, Simulation]] = {}
    for data in sets:
        tell(f"simulating {len(CNNS)} networks on {data} under {setting.machine.dataflow}")
        found[data] = {model: simulated(model, data, setting) for model in CNNS}
    return found


def _short_columns(sets: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        f"{SHORT[data]} {'eff' if design is Design.EFFICIENT else design.value}" for data in sets for design in ADAGP
    )


_SHORT_NOTE = "C10: CIFAR-10; C100: CIFAR-100; IN: ImageNet; eff: Efficient"


def figure16_table(simulation: Simulation, setting: Setting) -> Table:
    """VGG13 layer by layer: plain backpropagation, and Efficient's warm-up, BP and GP batches."""
    plain, efficient = simulation.baseline.layer_cycles(), simulation[Design.EFFICIENT]
    phases = {phase: efficient.layer_cycles(phase) for phase in Phase}
    rows = []
    for name, cycles in plain.items():
        parts = [phases[phase].get(name, 0) for phase in Phase]
        rows.append((name, *(short(value) for value in (cycles, *parts, sum(parts))), f"{cycles / sum(parts):.3f}"))
    totals = [sum(phases[phase].values()) for phase in Phase]
    last = (simulation.baseline.cycles, *totals, efficient.cycles)
    rows.append(("all", *map(short, last), f"{simulation.speed_up(Design.EFFICIENT):.3f}"))
    return Table(
        "Figure 16: VGG13, plain backpropagation and ADA-GP-Efficient, layer by layer",
        ("layer", "baseline", "warm-up", "BP", "GP", "ADA-GP", "speed-up"),
        rows,
        (f"cycles of {efficient.count:,} batches; the paper's figure is an image without values", *_notes(setting)),
    )


def speed_up_table(figure: int, found: Grid, setting: Setting) -> Table:
    """Figures 17 to 19: networks and designs, with averages and maxima beside the paper's."""
    rows = []
    for model in CNNS:
        cells = [f"{found[data][model].speed_up(design):.3f}" for data in found for design in ADAGP]
        rows.append((model, *cells))
    for label, function in (("average", fmean), ("maximum", max)):
        cells = [f"{function(values(found, data, design)):.3f}" for data in found for design in ADAGP]
        rows.append((label, *cells))
    for label, stated in (("paper's average", PAPER_AVERAGES[figure]), ("paper's maximum", PAPER_MAXIMA[figure])):
        if stated:
            rows.append((label, *(cell for data in found for cell in ("", "", f"{stated[data]:.2f}"))))
    return Table(
        f"Figure {figure}: speed-up over plain backpropagation, dataflow {setting.machine.dataflow}",
        ("network", *_short_columns(found)),
        rows,
        ("the paper states averages and maxima of MAX; its bars are an image", _SHORT_NOTE, *_notes(setting)),
    )


def values(found: Grid, data: str, design: Design) -> list[float]:
    """The speed-ups of all networks on a data set."""
    return [simulation.speed_up(design) for simulation in found[data].values()]


def levers_table(figure: int, setting: Setting, tell: Callable[[str], None]) -> Table:
    """The averages of figures 17 to 19 with one assumption changed at a time."""
    rows = []
    for label, changed in _levers(setting).items():
        tell(f"changing {label}")
        found = grid(changed)
        cells = [f"{function(values(found, data, Design.MAX)):.3f}" for data in IMAGE_SETS for function in (fmean, max)]
        rows.append((label, *cells))
    return Table(
        f"What moves figure {figure}: MAX, one assumption changed at a time",
        ("changed", *(f"{SHORT[data]} {what}" for data in IMAGE_SETS for what in ("avg", "max"))),
        rows,
        _notes(setting),
    )


def _levers(setting: Setting) -> dict[str, Setting]:
    machine = setting.machine
    return {
        "nothing": setting,
        "batch 16": replace(setting, batch=16),
        "epochs 200": replace(setting, epochs=200),
        "predictor 8x8": setting.on(predictor=replace(machine.predictor, grid=8)),
        "array 15x12": setting.on(array=parse_array("array", "15x12", machine.array)),
        "array 18x10": setting.on(array=parse_array("array", "18x10", machine.array)),
        "second array 4x5": setting.on(second_array=parse_array("second-array", "4x5", machine.second_array)),
        "stalls": setting.on(stalls=True),
        "vector unit of 16 lanes": setting.on(vector_lanes=16),
    }


def figure21_tables(found: Grid, setting: Setting, tell: Callable[[str], None]) -> list[Table]:
    """Energy of memory accesses: networks and designs, and the average under every policy and table."""
    eyeriss = COST_TABLES["eyeriss"]
    rows = [
        (
            model,
            *(
                f"{100 * found[data][model].energy_saved(design, eyeriss):.1f}"
                for data in IMAGE_SETS
                for design in ADAGP
            ),
        )
        for model in CNNS
    ]
    rows.append(
        (
            "average",
            *(f"{100 * fmean(savings(found, data, design, eyeriss)):.1f}" for data in IMAGE_SETS for design in ADAGP),
        )
    )
    networks = Table(
        "Figure 21: memory energy saved, %",
        ("network", *_short_columns(IMAGE_SETS)),
        rows,
        (
            _SHORT_NOTE,
            f"the paper: {100 * PAPER_ENERGY_SAVED:.0f} % on average over all models; its bars are an image",
            energy_note(setting.machine, eyeriss),
            *_notes(setting),
        ),
    )
    return [networks, _policies_table(setting, tell)]


def _policies_table(setting: Setting, tell: Callable[[str], None]) -> Table:
    rows = []
    for policy in POLICIES:
        tell(f"simulating the policy {policy}")
        found = grid(setting.on(policy=policy))
        simulations = [found[data][model] for data in IMAGE_SETS for model in CNNS]
        dram = 1 - fmean(run[Design.EFFICIENT].dram_words / run.baseline.dram_words for run in simulations)
        cells = [
            f"{100 * fmean(run.energy_saved(Design.EFFICIENT, table) for run in simulations):.1f}"
            for table in COST_TABLES.values()
        ]
        rows.append((policy, f"{100 * dram:.1f}", *cells))
    return Table(
        "Memory energy saved by Efficient, %, average of 13 networks on 3 data sets",
        ("policy", "DRAM words", *COST_TABLES),
        rows,
        (
            f"the paper: {100 * PAPER_ENERGY_SAVED:.0f} %",
            *(f"{name}: {policy.about}" for name, policy in POLICIES.items()),
        ),
    )


def savings(found: Grid, data: str, design: Design, table: CostTable) -> list[float]:
    """Shares of memory energy saved, of all networks on a data set."""
    return [simulation.energy_saved(design, table) for simulation in found[data].values()]


def cycles_table(number: int, simulation: Simulation, setting: Setting, batches: int) -> Table:
    """Tables 2 and 3: cycles of a whole training."""
    stated = PAPER_CYCLES[number]
    rows = []
    for design, run in simulation.items():
        printed = stated.get(design.value, stated.get("ADA-GP") if design is Design.EFFICIENT else None)
        rows.append(
            (
                design.value,
                f"{run.batch_cycles * batches / 1e9:,.1f}",
                f"{simulation.speed_up(design):.3f}",
                "" if printed is None else f"{printed:,.10g}",
                "" if printed is None else f"{stated['baseline'] / printed:.2f}",
            )
        )
    model, data = TABLE_NETWORKS[number]
    return Table(
        f"Table {number}: cycles of training {model} on {data}, in 10^9",
        ("design", "cycles", "speed-up", "paper's cycles", "paper's"),
        rows,
        (
            f"{batches:,} batches; the paper states neither epochs nor batch, nor which design of table 2 'ADA-GP' is",
            *_notes(setting),
        ),
    )


def iso_table(which: str, setting: Setting, tell: Callable[[str], None]) -> Table:
    """MAX against a baseline whose larger array takes up MAX's extra power or area."""
    more, stated = ISO[which]
    array = setting.machine.array
    budget, here = round(array.pes * (1 + more)), str(array)
    shapes = [(array.rows, budget // array.rows), (budget // array.columns, array.columns), _exact(budget, array)]
    plain = grid(setting, tell)
    rows = []
    for rows_of_pes, columns in shapes:
        found = grid(setting.on(array=replace(array, rows=rows_of_pes, columns=columns)), tell)
        for data in IMAGE_SETS:
            gains = [plain[data][model].baseline.cycles / found[data][model].baseline.cycles for model in CNNS]
            left = [found[data][model].baseline.cycles / plain[data][model][Design.MAX].cycles for model in CNNS]
            rows.append(
                (
                    f"{rows_of_pes}x{columns}",
                    data,
                    str(rows_of_pes * columns),
                    f"{100 * (fmean(gains) - 1):+.2f}",
                    f"{100 * (fmean(left) - 1):+.2f}",
                    f"{stated[data]:+.2f}",
                )
            )
    return Table(
        f"Equal {which}: a baseline with up to {100 * more:.0f} % more PEs",
        ("array", "data", "PEs", "larger baseline %", "MAX over it %", "paper's %"),
        rows,
        (
            f"larger baseline: faster than the one on {here}; MAX over it: MAX on {here} against it; averages",
            "the paper does not say which of the two its figure is",
            f"arrays: whole columns or rows added to {here}, and the shape nearest to it that has all {budget} PEs",
            *_notes(setting),
        ),
        text_columns=2,
    )


def _exact(pes: int, like: Array) -> tuple[int, int]:
    """Rows and columns of an array of exactly so many PEs, in proportions as near as possible to another's."""
    rows = [count for count in range(1, pes + 1) if pes % count == 0]
    nearest = min(rows, key=lambda count: abs(log(count * count * like.columns / (pes * like.rows))))
    return nearest, pes // nearest


def _notes(setting: Setting) -> tuple[str, ...]:
    return assumptions(setting.machine, setting.batch, setting.epochs)


def plain_grid(found: Grid, figure: Callable[[Simulation, Design], float]) -> dict[str, dict[str, dict[str, float]]]:
    """A figure of every network and design, for pictures and programs."""
    return {
        data: {model: {design.value: figure(each, design) for design in ADAGP} for model, each in networks.items()}
        for data, networks in found.items()
    }
