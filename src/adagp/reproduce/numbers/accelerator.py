"""Numbers of the ADA-GP paper (001) about one accelerator: figures 7 to 9, 16 to 19, 21, tables 2, 3, section 6.6."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean

from adagp.accelerator import COST_TABLES, Design, Machine, Setting
from adagp.reproduce.accelerator import (
    FIGURES,
    ISO,
    PAPER_AVERAGES,
    PAPER_CYCLES,
    PAPER_ENERGY_SAVED,
    PAPER_MAXIMA,
    TABLE_NETWORKS,
    Grid,
    grid,
    savings,
    simulated,
    values,
)
from adagp.reproduce.numbers.row import Row, Verdict, judged, near
from adagp.reproduce.timelines import chip_timelines

BATCH, EPOCHS = 128, 90
_SETTING = Setting(BATCH, EPOCHS, Machine())
_ALPHA = 0.1
_SPREAD = "; B/F differs from network to network: strides and depthwise layers raise it"
Tell = Callable[[str], None]


def rows(tell: Tell) -> Iterator[Row]:
    """All of them, simulated; `tell` receives what is under way."""
    yield from _timelines()
    grids = {figure: grid(_SETTING.on(dataflow=flow), tell) for figure, flow in FIGURES.items()}
    yield _case_study(grids[17])
    for figure, found in grids.items():
        yield from _speed_ups(figure, found)
    yield _overall(grids)
    yield from _cycles()
    yield from _equal_cost(grids[17], tell)
    yield _energy(grids[17])


def _timelines() -> Iterator[Row]:
    command = f"`adagp reproduce fig7-9 --predictor {_ALPHA}`"
    shown = chip_timelines(_ALPHA)
    for each in shown:
        yield Row(
            f"figure {each.figure}",
            f"steps of a batch, {each.title}",
            each.stated,
            near(each.timeline.steps, each.paper_steps, 1e-9),
            f"{each.timeline.steps:g} at alpha = {_ALPHA}",
            command,
        )
    both = shown[1].timeline.steps + shown[2].timeline.steps
    yield Row(
        "section 3.7",
        "two batches, baseline and ADA-GP",
        "24, 16 + 16 alpha",
        judged(abs(both - 16 - 16 * _ALPHA) < 1e-9 and 2 * shown[0].timeline.steps == 24),
        f"24, {both:g} at alpha = {_ALPHA}",
        command,
    )
    yield Row(
        "section 1",
        "speed-up if every gradient were predicted",
        "almost 3 x",
        near(shown[0].timeline.steps / (shown[2].timeline.steps - 4 * _ALPHA), 3, 1e-9),
        f"3 with a free predictor, {shown[0].timeline.steps / shown[2].timeline.steps:.2f} at alpha = {_ALPHA}",
        command,
    )


def _case_study(found: Grid) -> Row:
    run = found["cifar10"]["vgg13"]
    return Row(
        "figure 16",
        "VGG13 layer by layer, Efficient",
        "an image without values",
        Verdict.OPEN,
        f"a table of {len(run.baseline.layer_cycles())} layers; in all {run.speed_up(Design.EFFICIENT):.3f} x",
        "`adagp reproduce fig16`",
    )


def _speed_ups(figure: int, found: Grid) -> Iterator[Row]:
    for kind, stated, of in (("mean", PAPER_AVERAGES[figure], fmean), ("largest", PAPER_MAXIMA[figure], max)):
        for data, theirs in stated.items():
            ours = of(values(found, data, Design.MAX))
            verdict = near(ours, theirs)
            yield Row(
                f"figure {figure}",
                f"{FIGURES[figure]}, MAX, {data}, {kind} speed-up",
                f"{theirs:.2f}",
                verdict,
                f"{ours:.3f}",
                f"`adagp reproduce fig{figure}`{_SPREAD if verdict is Verdict.REFUTED else ''}",
            )
    yield Row(
        f"figure {figure}",
        f"{FIGURES[figure]}, bars of LOW and Efficient",
        "an image without values",
        Verdict.OPEN,
        "every network, design and data set in a table",
        f"`adagp reproduce fig{figure}`",
    )


def _overall(grids: Mapping[int, Grid]) -> Row:
    ours = fmean(fmean(values(found, data, Design.MAX)) for found in grids.values() for data in found)
    return Row(
        "abstract",
        "mean speed-up",
        "1.47",
        near(ours, 1.47),
        f"{ours:.3f} in modelled cycles",
        "`adagp reproduce fig17`, `fig18`, `fig19`; it is the schedule's algebra: 1.465 for 90 epochs where B = 2F",
    )


def _cycles() -> Iterator[Row]:
    for table, (model, data) in TABLE_NETWORKS.items():
        run = simulated(model, data, _SETTING)
        stated = PAPER_CYCLES[table]
        for name, theirs in stated.items():
            if name == "baseline":
                continue
            design = Design.MAX if name == "max" else Design.EFFICIENT
            ratio = stated["baseline"] / theirs
            yield Row(
                f"table {table}",
                f"{model}, speed-up, {name}",
                f"{ratio:.2f}",
                near(run.speed_up(design), ratio),
                f"{run.speed_up(design):.3f} for {EPOCHS} epochs",
                f"`adagp reproduce table{table}-cycles`; so little is what 14 epochs give, most of them warm-up",
            )
        yield Row(
            f"table {table}",
            f"{model}, 10^9 cycles",
            ", ".join(f"{name} {theirs:,.10g}" for name, theirs in stated.items()),
            Verdict.OPEN,
            f"`adagp reproduce table{table}-cycles` prints ours",
            "it states neither epochs nor batch nor input size, on which they depend",
        )


def _equal_cost(plain: Grid, tell: Tell) -> Iterator[Row]:
    array = _SETTING.machine.array
    larger = {
        "12x16": grid(_SETTING.on(array=replace(array, rows=12, columns=16)), tell),
        "13x15": grid(_SETTING.on(array=replace(array, rows=13, columns=15)), tell),
    }
    for which, (more, stated) in ISO.items():
        for data, theirs in stated.items():
            gains = {
                name: 100
                * (
                    fmean(
                        plain[data][model].baseline.cycles / run.baseline.cycles for model, run in found[data].items()
                    )
                    - 1
                )
                for name, found in larger.items()
            }
            yield Row(
                "section 6.6.1",
                f"equal {which}: {100 * more:.0f} % more PEs in the baseline, {data}",
                f"{theirs} %",
                judged(any(abs(gain - theirs) <= 0.5 for gain in gains.values())),
                ", ".join(f"+{gain:.1f} % as {name}" for name, gain in gains.items()),
                f"`adagp reproduce iso-{which}`; a row or a column of PEs gains at least its share",
            )


def _energy(found: Grid) -> Row:
    table = COST_TABLES["eyeriss"]
    ours = fmean(fmean(savings(found, data, Design.EFFICIENT, table)) for data in found)
    return Row(
        "figure 21",
        "memory energy saved, mean",
        f"{100 * PAPER_ENERGY_SAVED:.0f} %",
        near(ours, PAPER_ENERGY_SAVED, 0.1),
        f"{100 * ours:.1f} % (policy separate); 28 to 42 % over policies and tables",
        "`adagp reproduce fig21`; within a tenth, by a policy that it does not state",
    )
