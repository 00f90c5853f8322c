"""The accelerator in RTL: tables of its checks, cycles and resources, and the three ADA-GP designs as a picture."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adagp.accelerator import Design
from adagp.report.plot import dress, figure_with, saved
from adagp.report.table import Table
from adagp.schedules import Phase

if TYPE_CHECKING:
    from adagp.accelerator.rtl.checks import Check
    from adagp.accelerator.rtl.geometry import CoreGeometry
    from adagp.accelerator.rtl.layer_run import LayerRun
    from adagp.accelerator.rtl.measure import MeasuredBatch
    from adagp.accelerator.rtl.training import TrainedBatch

_BASE, _ADDED, _LINE = "#dfe7f2", "#f9c98b", "#3b4a63"
_TITLES = {
    Design.LOW: "LOW: the baseline, and lanes that pool",
    Design.EFFICIENT: "Efficient: and a memory for the predictor",
    Design.MAX: "MAX: and a second core for the predictor",
}


def checks_table(title: str, checks: "Sequence[Check]") -> Table:
    """Computations on the RTL, compared with torch and the accelerator model."""
    return Table(
        title,
        ("computed", "bit-exact", "error", "bound", "cycles", "model"),
        [
            (
                check.name,
                "yes" if check.exact else "NO",
                f"{check.error:.2e}",
                f"{check.bound:.2e}" if check.within else f"{check.bound:.2e} EXCEEDED",
                f"{check.cycles:,}",
                f"{check.model_cycles:,}",
            )
            for check in checks
        ],
        (
            "bit-exact: against whole numbers computed by torch's convolutions, without banks and folds",
            "error: the largest distance from torch in 64-bit floating point; bound: what 16 bits allow",
            "cycles: measured; model: by the formulas, with moves at 16 words a cycle and a latency of 4",
        ),
    )


def batches_table(batches: "Sequence[MeasuredBatch]") -> Table:
    """Batches on the RTL: whether they are exact, and their cycles beside the formulas' and the accelerator model's."""
    return Table(
        "Cycles of a batch on the RTL",
        ("design", "batch", "exact", "measured", "model", "array", "no stalls", "DRAM words"),
        [
            (
                batch.design.value,
                batch.phase.value,
                "yes" if batch.bit_exact else "NO",
                *(
                    f"{count:,}"
                    for count in (batch.measured, batch.model, batch.array, batch.no_stalls, batch.moved_words)
                ),
            )
            for batch in batches
        ],
        (
            "exact: outputs, weights and predictor, against torch's convolutions of integers",
            "model: by the formulas, moves included; array: those in which the layers' array has a product",
            "no stalls: the accelerator model, which leaves out moves, tiles and folds cut short",
        ),
        text_columns=3,
    )


def run_table(
    setting: Mapping[str, Any], dram: Mapping[str, Any], simulator: str, seconds: float, run: "LayerRun"
) -> Table:
    """One layer on the RTL."""
    rows = [
        ("bit-exact", "yes" if run.bit_exact else "NO"),
        ("cycles of the RTL", f"{run.cycles:,}"),
        ("cycles by the formulas, moves included", f"{run.model_cycles:,}"),
        ("cycles without stalls", f"{run.no_stall_cycles:,}"),
        ("words between chip and DRAM", f"{run.moved_words:,}"),
        *(
            (f"{unit} core: {what}", f"{100 * share:.1f} %")
            for unit, use in run.use.items()
            for what, share in (
                ("PEs at work", use.pes),
                ("array busy", use.array),
                ("loader busy", use.loader),
                ("drainer busy", use.drainer),
            )
        ),
    ]
    title = "{model} {layer} on {data}, batch {batch}, {phase} on {design}".format(**setting)
    notes = (
        f"{dram['array']} PEs; DRAM: {dram['bandwidth_words']} words a cycle, latency {dram['latency_cycles']} cycles",
        "bit-exact: outputs, gradients, weights and predictor, against torch's convolutions of integers",
        "without stalls: the accelerator model, which leaves out moves, tiles and folds cut short",
        f"clocked by {simulator} in {seconds:.1f} s",
    )
    return Table(title, ("", "value"), rows, notes)


def training_table(title: str, batches: "Sequence[TrainedBatch]") -> Table:
    """A training on the RTL: losses by fifths of it, and the cycles of its phases."""
    parts = [list(batches[len(batches) * fifth // 5 : len(batches) * (fifth + 1) // 5]) for fifth in range(5)]
    rows = [
        (
            f"batches up to {len(batches) * (place + 1) // 5}",
            f"{sum(each.loss for each in part) / len(part):.3f}",
            str(sum(each.phase is Phase.GP for each in part)),
            f"{sum(each.cycles for each in part):,}",
            "yes" if all(each.bit_exact for each in part) else "NO",
        )
        for place, part in enumerate(parts)
        if part
    ]
    cycles = {phase: {each.cycles for each in batches if each.phase is phase} for phase in Phase}
    notes = [f"a {phase.value} batch: {max(found):,} cycles" for phase, found in cycles.items() if found]
    return Table(f"Training on the RTL: {title}", ("", "loss", "GP", "cycles", "bit-exact"), rows, tuple(notes))


def synthesis_table(title: str, target: str, resources: Mapping[str, int]) -> Table:
    """The resources of one design for a target of yosys."""
    notes = (
        ("lut: with inverters and shift registers, before any are packed in pairs",)
        if target == "xc7"
        else ("area: of logic cells; memories are left out, as a chip takes them from a memory compiler",)
    )
    return Table(title, ("resource", "used"), [(name, f"{count:,}") for name, count in resources.items()], notes)


def modules_table(modules: Mapping[str, Mapping[str, int]]) -> Table:
    """What one of each kind of module takes, without the modules inside it."""
    columns = list(next(iter(modules.values())))
    rows = [(short_name(name), *(f"{use[column]:,}" for column in columns)) for name, use in modules.items()]
    return Table("One of each module, without the modules inside it", ("module", *columns), rows)


def modules_picture(modules: Mapping[str, Mapping[str, int]], what: str, title: str, file_format: str = "png") -> bytes:
    """A bar for each kind of module: what all instances of it take together."""
    totals = {name: use["number"] * use[what] for name, use in modules.items()}
    shown = sorted((name for name, total in totals.items() if total), key=lambda name: totals[name])
    figure, (panel,) = figure_with(8, 1.0 + 0.3 * len(shown))
    bars = panel.barh([short_name(name) for name in shown], [totals[name] for name in shown], color="#56B4E9")
    labels = [
        f" {modules[name]['number']:,} x {modules[name][what]:,}: {100 * totals[name] / sum(totals.values()):.1f} %"
        for name in shown
    ]
    panel.bar_label(bars, labels, fontsize=8)
    panel.set_xlim(0, 1.45 * max(totals.values()))
    panel.tick_params(labelsize=8)
    dress(panel, title, what, "")
    return saved(figure, file_format)


def short_name(module: str) -> str:
    """The name of a module without a long list of its sizes."""
    return module if len(module) < 22 else module.split("_16_48_")[0]


def designs_png(array: tuple[int, int], second_array: tuple[int, int], dpi: int = 110) -> bytes:
    """The designs side by side; what a design adds to the baseline is coloured."""
    from adagp.accelerator.rtl.top import MAIN, PREDICTOR, geometries  # imports Amaranth, an extra

    figure, panels = figure_with(16, 6.2, 1, 3)
    for axes, (design, title) in zip(panels, _TITLES.items(), strict=True):
        axes.set_xlim(0, 10)
        axes.set_ylim(-0.5, 12)
        axes.axis("off")
        axes.set_title(title, fontsize=13, color=_LINE)
        cores = geometries(design, array, second_array)
        alone = PREDICTOR not in cores
        _box(axes, 0.1, 5.7 if alone else 0.2, 1.2, 5.9 if alone else 11.4, "outside\nmemory", _BASE)
        _core(axes, 6.3, cores[MAIN], added=False)
        if alone:
            _box(axes, 1.9, 4.6, 0.5, 0.4, "", _ADDED)
            axes.text(2.6, 4.8, "added to the baseline", va="center", fontsize=10, color=_LINE)
        else:
            _core(axes, 0.3, cores[PREDICTOR], added=True)
    return saved(figure, dpi=dpi)


def _core(axes: Any, bottom: float, core: "CoreGeometry", added: bool) -> None:
    """Draw one core, 5.3 high from `bottom`."""
    colour = _ADDED if added else _BASE
    middle = bottom + 2.55
    _box(axes, 1.9, bottom + 4.5, 7.9, 0.8, "dispatcher; loader, array and drainer at work at once", colour)
    _box(axes, 1.9, bottom + 1.5, 1.7, 2.1, f"input buffer\n{core.rows} banks x\n{core.input_depth:,} words", colour)
    _box(axes, 4.1, bottom + 1.5, 2.0, 2.1, f"{core.rows} x {core.columns}\nPEs", colour)
    _box(
        axes,
        6.6,
        bottom + 1.5,
        1.6,
        2.1,
        f"output buffer\n{core.columns} banks x\n2 x {core.output_depth:,}",
        colour,
    )
    _box(axes, 8.6, bottom + 1.5, 1.2, 2.1, f"{core.columns} lanes:\nround,\nReLU,\nupdate", colour)
    _box(axes, 4.1, bottom, 2.0, 1.0, f"weight buffer\n{core.columns} x {core.weight_depth:,}", colour)
    _arrow(axes, (1.3, middle), (1.9, middle))
    _arrow(axes, (3.6, middle), (4.1, middle))
    _arrow(axes, (6.1, middle + 0.4), (6.6, middle + 0.4))
    _arrow(axes, (6.6, middle - 0.4), (6.1, middle - 0.4))
    _arrow(axes, (8.2, middle), (8.6, middle))
    _arrow(axes, (5.1, bottom + 1.0), (5.1, bottom + 1.5))
    _arrow(axes, (1.3, bottom + 0.5), (4.1, bottom + 0.5))
    _arrow(axes, (1.3, bottom + 4.9), (1.9, bottom + 4.9))
    _line(axes, [9.2, 9.2, 1.6], [bottom + 1.5, bottom + 1.25, bottom + 1.25])
    _arrow(axes, (1.6, bottom + 1.25), (1.3, bottom + 1.25))
    if core.pool_depth:
        _box(axes, 8.6, bottom + 3.65, 1.2, 0.6, "pool", _ADDED)
    if core.predictor_depth:
        label = f"predictor weights\n{core.predictor_banks} x {core.predictor_depth:,}"
        _box(axes, 6.6, bottom, 2.0, 1.0, label, _ADDED)
        _line(axes, [7.0, 7.0, 5.7], [bottom + 1.0, bottom + 1.12, bottom + 1.12])
        _arrow(axes, (5.7, bottom + 1.12), (5.7, bottom + 1.5))
        _line(axes, [1.3, 7.6, 7.6], [bottom - 0.35, bottom - 0.35, bottom - 0.2])
        _arrow(axes, (7.6, bottom - 0.3), (7.6, bottom))
    if core.predictor_depth:  # updated where they are
        _arrow(axes, (8.2, bottom + 1.25), (8.2, bottom + 1.0))


def _box(axes: Any, left: float, bottom: float, width: float, height: float, text: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch((left, bottom), width, height, boxstyle=style, facecolor=colour, edgecolor=_LINE, lw=1.1)
    )
    axes.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=8, color="#1c2433")


def _line(axes: Any, across: list[float], up: list[float]) -> None:
    axes.plot(across, up, color=_LINE, lw=1.1, zorder=0)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "->", "color": _LINE, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    )
