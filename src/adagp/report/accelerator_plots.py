"""Pictures of the accelerator model: timelines, layers, speed-ups, sweeps."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from adagp.accelerator import Design, Simulation, Step
from adagp.accelerator.sweep import Point
from adagp.report.accelerator import ADAGP
from adagp.report.plot import dress, figure_with, saved
from adagp.schedules import Phase

# Okabe and Ito's colour-blind safe palette.
COLOURS = {
    Design.BASELINE: "#000000",
    Design.LOW: "#E69F00",
    Design.EFFICIENT: "#56B4E9",
    Design.MAX: "#0072B2",
}
_PHASES = {Phase.WARMUP: ("warm-up", "#999999"), Phase.BP: ("BP", "#56B4E9"), Phase.GP: ("GP", "#E69F00")}
_FORWARD, _BACKWARD, _PREDICTOR, _LOAD = "#56B4E9", "#0072B2", "#E69F00", "#999999"
_OURS = {"coarse": ("half-size BP for GP (ours)", "#009E73"), "progressive": ("progressive (ours)", "#CC79A7")}
NAMES = {Design.BASELINE: "Baseline", Design.LOW: "LOW", Design.EFFICIENT: "Efficient", Design.MAX: "MAX"}


_TIMELINES = (
    (Design.BASELINE, Phase.BP),
    (Design.EFFICIENT, Phase.BP),
    (Design.EFFICIENT, Phase.GP),
    (Design.MAX, Phase.BP),
    (Design.MAX, Phase.GP),
)


def timeline_picture(simulation: Simulation, title: str, file_format: str = "png") -> bytes:
    """One panel per kind of batch, as figures 7 to 9: a row per layer, bars where it or its predictor runs."""
    panels = {
        f"{NAMES[design]}, {batch.label} batch": batch.steps
        for design, phase in _TIMELINES
        for batch in simulation[design].batches
        if batch.phase is phase
    }
    figure, axes = figure_with(10, 1.0 + sum(0.9 + 0.2 * len(_layers(steps)) for steps in panels.values()), len(panels))
    longest = max(sum(step.cycles for step in steps) for steps in panels.values())
    for panel, (name, steps) in zip(axes, panels.items(), strict=True):
        _timeline(panel, steps)
        panel.set_xlim(0, longest * 1.01)
        total = sum(step.cycles for step in steps)
        dress(panel, f"{name}: {total:,} cycles", "cycles" if panel is axes[-1] else "", "")
    handles = [
        _patch(colour, label)
        for colour, label in (
            (_FORWARD, "forward"),
            (_BACKWARD, "backward"),
            (_PREDICTOR, "predictor"),
            (_LOAD, "its weights loaded"),
        )
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _titled(figure, title, file_format)


def _layers(steps: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(step.layer for step in steps if step.layer))


def _timeline(panel: Any, steps: Sequence[Step]) -> None:
    rows = {name: place for place, name in enumerate(_layers(steps))}
    start = 0
    for step in steps:
        colour = _FORWARD if step.stage == "forward" else _BACKWARD
        together = step.overlapped and step.predictor_layer == step.layer  # both in one row: half of it each
        if step.layer:
            height = 0.4 if together else 0.8
            panel.broken_barh([(start, step.layer_cycles)], (rows[step.layer] - 0.4, height), color=colour)
        after = 0 if step.overlapped else step.layer_cycles
        if step.load_cycles:
            row = rows[step.predictor_layer]
            panel.broken_barh([(start + after, step.load_cycles)], (row - 0.4, 0.8), color=_LOAD)
            after += step.load_cycles
        if step.predictor_layer:
            up = (rows[step.predictor_layer], 0.4) if together else (rows[step.predictor_layer] - 0.4, 0.8)
            panel.broken_barh([(start + after, step.predictor_cycles)], up, color=_PREDICTOR)
        start += step.cycles
    panel.set_yticks(range(len(rows)), list(rows), fontsize=7)
    panel.set_ylim(len(rows) - 0.4, -0.6)


def layers_picture(simulation: Simulation, design: Design, title: str, file_format: str = "png") -> bytes:
    """Stacked bars per layer, as figure 16: plain backpropagation next to a design's warm-up, BP and GP batches."""
    plain = simulation.baseline.layer_cycles()
    names = list(plain)
    figure, (panel,) = figure_with(max(8, 2 + 0.5 * len(names)), 4.5, 1)
    places = range(len(names))
    panel.bar(
        [place - 0.2 for place in places], [plain[name] for name in names], 0.38, color="#000000", label="baseline"
    )
    below = [0] * len(names)
    for phase, (label, colour) in _PHASES.items():
        cycles = simulation[design].layer_cycles(phase)
        heights = [cycles.get(name, 0) for name in names]
        panel.bar(
            [place + 0.2 for place in places],
            heights,
            0.38,
            bottom=below,
            color=colour,
            label=f"{design.value}: {label}",
        )
        below = [low + height for low, height in zip(below, heights, strict=True)]
    panel.set_xticks(list(places), names, rotation=60, ha="right", fontsize=8)
    panel.legend(fontsize=8, frameon=False)
    dress(panel, "", "", f"cycles of {simulation[design].count:,} batches")
    return _titled(figure, title, file_format)


Bars = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""The height of each bar, by panel, network and design or method; None: no bar."""


def bars_picture(
    groups: Bars,
    title: str,
    up: str,
    lines: Mapping[str, float] | None = None,
    file_format: str = "png",
    ours: Bars | None = None,
) -> bytes:
    """Grouped bars, as figures 17 to 21: a panel per data set or scheme, a group per network, a bar per design.

    Args:
        groups: Heights by design.
        title: The title of the figure.
        up: The label of the heights.
        lines: The paper's average in each panel, drawn across.
        file_format: `png` or `svg`.
        ours: Heights by method of what is not in the paper, hatched.
    """
    figure, axes = figure_with(11, 0.8 + 2.4 * len(groups), len(groups))
    for panel, (name, networks) in zip(axes, groups.items(), strict=True):
        added = ours[name] if ours else {model: {} for model in networks}
        series = [
            *((design, NAMES[Design(design)], COLOURS[Design(design)]) for design in next(iter(networks.values()))),
            *((method, *_OURS[method]) for method in next(iter(added.values()))),
        ]
        width = 0.8 / len(series)
        for turn, (key, label, colour) in enumerate(series):
            places = [place + (turn - (len(series) - 1) / 2) * width for place in range(len(networks))]
            known = ({**networks[model], **added[model]}[key] for model in networks)
            heights = [nan if height is None else height for height in known]
            hatch = "///" if key in _OURS else ""
            panel.bar(places, heights, 0.95 * width, color=colour, label=label, hatch=hatch, edgecolor="#ffffff")
        if lines and name in lines:
            panel.axhline(
                lines[name], color="#D55E00", linewidth=1.2, linestyle="--", label=f"paper's average {lines[name]}"
            )
        panel.set_xticks(range(len(networks)), list(networks), rotation=30, ha="right", fontsize=8)
        above = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
        panel.legend(fontsize=8, frameon=False, ncols=len(series) + 1, **above)
        dress(panel, name, "", up)
    return _titled(figure, title, file_format)


def sweep_picture(points: Sequence[Point], title: str, file_format: str = "png") -> bytes:
    """Speed-ups over the first parameter, a panel for each combination of the others."""
    first, *others = points[0].values
    panels: dict[str, list[Point]] = {}
    for point in points:
        panels.setdefault(", ".join(f"{name} {point.values[name]}" for name in others), []).append(point)
    figure, axes = figure_with(7, 0.8 + 3.0 * len(panels), len(panels))
    heights = [point.speed_ups[design] for point in points for design in ADAGP]
    room = 0.05 * (max(heights) - min(heights)) + 0.005
    for panel, (name, chosen) in zip(axes, panels.items(), strict=True):
        panel.set_ylim(min(heights) - room, max(heights) + room)
        labels = [point.values[first] for point in chosen]
        for design in ADAGP:
            reached = [point.speed_ups[design] for point in chosen]
            panel.plot(range(len(labels)), reached, "o-", color=COLOURS[design], label=NAMES[design])
        panel.set_xticks(range(len(labels)), labels)
        panel.legend(fontsize=8, frameon=False)
        dress(panel, name, first, "speed-up")
    return _titled(figure, title, file_format)


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label)


def _titled(figure: Any, title: str, file_format: str) -> bytes:
    figure.suptitle(title, fontsize=11)
    return saved(figure, file_format)
