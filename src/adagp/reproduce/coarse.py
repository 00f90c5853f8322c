"""Not in the papers: what their accelerator gains if its cheap batches are BP batches of half-size images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from adagp.accelerator import CNNS, IMAGE_SETS, Design, Setting, Simulation, network, simulate
from adagp.report.accelerator import assumptions
from adagp.report.batch_kinds import schedule_words
from adagp.report.table import Table

METHODS = ("coarse", "progressive")
"""The coarse batches in the ladder's GP slots, and small images first."""
Figure = Callable[[Simulation, Design], float]
Gains = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""A figure of each of `METHODS`, by data set and network; None where the network cannot take smaller images."""
SHORT = {"cifar10": "C10", "cifar100": "C100", "imagenet": "IN"}
ANY_DESIGN = Design.EFFICIENT  # without a predictor all are alike


def gains(
    setting: Setting,
    figure: Figure,
    tell: Callable[[str], None] = lambda text: None,
    sets: Sequence[str] = IMAGE_SETS,
) -> Gains:
    """A figure of the thirteen CNNs on the three data sets, or on some of them, by coarse batches."""
    found = {}
    for data in sets:
        tell(f"simulating coarse batches of {len(CNNS)} networks on {data} under {setting.machine.dataflow}")
        found[data] = {
            model: {method: _gain(model, data, replace(setting, method=method), figure) for method in METHODS}
            for model in CNNS
        }
    return found


def _gain(model: str, data: str, setting: Setting, figure: Figure) -> float | None:
    ops = network(model, data, setting.batch)
    try:
        found = simulate(ops, *setting.schedule(), setting.machine, (Design.BASELINE, ANY_DESIGN))
    except ValueError as error:
        if str(error).startswith("scale="):
            return None
        raise
    return figure(found, ANY_DESIGN)


def gains_table(title: str, paper: Gains, design: Design, found: Gains, setting: Setting, digits: int = 3) -> Table:
    """Coarse batches beside a design of the paper's, with averages over the networks that can take them."""
    rows = []
    for model in CNNS:
        cells: list[str] = []
        for data in found:
            figures = [paper[data][model][design.value], *(found[data][model][method] for method in METHODS)]
            cells += ["-" if figure is None else f"{figure:.{digits}f}" for figure in figures]
        rows.append((model, *cells))
    average: list[str] = []
    for data in found:
        able = [model for model in CNNS if None not in found[data][model].values()]
        columns = [(paper, design.value), *((found, method) for method in METHODS)]
        average += [
            f"{fmean(grid[data][model][column] or 0.0 for model in able):.{digits}f}" for grid, column in columns
        ]
    return Table(
        title,
        ("network", *(f"{SHORT[data]} {column}" for data in found for column in ("GP", "half", "prog."))),
        [*rows, ("average", *average)],
        (
            f"C10, C100, IN: CIFAR-10, CIFAR-100, ImageNet; GP: {design.value}; half: coarse; prog.: progressive",
            "average: of the networks that can take smaller images",
            *method_notes(setting),
            "without a predictor: the same on every design, the baseline included",
            "-: the network cannot take smaller images",
            *assumptions(setting.machine, setting.batch),
        ),
    )


def method_notes(setting: Setting) -> tuple[str, ...]:
    """What the trainings of `METHODS` consist of."""
    return tuple(
        f"{method}: {setting.epochs} epochs of {schedule_words(method, setting.scale, setting.levels)}"
        for method in METHODS
    )
