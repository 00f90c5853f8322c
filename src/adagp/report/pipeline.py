"""A simulated pipeline: its figures, a grid of devices over time, SVG, an HTML page and a Chrome trace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

from adagp.accelerator.pipeline import Slot, Timeline
from adagp.report.html import document, table_html
from adagp.report.table import Table

PASSES = {
    "F": ("forward, BP", "#56B4E9"),
    "B": ("backward, BP", "#E69F00"),
    "G": ("forward and update, GP", "#009E73"),
    "f": ("forward, coarse BP", "#F0E442"),
    "b": ("backward, coarse BP", "#CC79A7"),
    "W": ("gradient of the weights", "#D55E00"),
    "w": ("gradient of the weights, coarse", "#999999"),
    "L": ("backward, local loss", "#0072B2"),
    "l": ("backward, coarse local loss", "#999999"),
}
"""Letter, meaning and colour of a pass, from Okabe and Ito's colour-blind safe palette."""

STEP_MICROSECONDS = 1000
"""Trace viewers show seconds, not steps: a step is shown as a millisecond."""

_NARROWEST, _WIDEST, _ROW, _LEFT, _GAP, _LEGEND = 26, 1600, 26, 76, 44, 190  # pixels
_SHORTEST = 1e-6  # steps of a pass that a grid can show
_TEXT = 'font-family="system-ui, sans-serif" font-size="12" fill="#222"'


def letter(timeline: Timeline, slot: Slot) -> str:
    """The kind of pass in a slot, a key of `PASSES`."""
    if not timeline.pipeline.has_backward(slot.task.batch):
        return "G"
    backward = "L" if timeline.pipeline.scheme == "local" else "B"
    kind = "W" if slot.task.weights else backward if slot.task.backward else "F"
    return kind if timeline.pipeline.scale_of(slot.task.batch) == 1 else kind.lower()


def number(timeline: Timeline, slot: Slot) -> int:
    """The micro-batch of a slot, counted from the first batch on."""
    return slot.task.batch * timeline.pipeline.microbatches + slot.task.micro_batch


@dataclass(frozen=True)
class PipelineGrid:
    """A timeline cut into columns of equal length.

    Attributes:
        column: Steps in a column.
        rows: Per device the slot in each column; None if the device is idle.
    """

    column: float
    rows: list[list[Slot | None]]


def pipeline_grid(timeline: Timeline, most_columns: int = 600) -> PipelineGrid | None:
    """The coarsest grid that shows every start and end; None if it needs more than `most_columns`."""
    if min(slot.end - slot.start for slot in timeline.slots) < _SHORTEST:
        return None
    times = {_exact(time) for slot in timeline.slots for time in (slot.start, slot.end)}
    common = math.lcm(*(time.denominator for time in times))
    column = Fraction(math.gcd(*(int(time * common) for time in times)), common)
    columns = int(max(times) / column)
    if columns > most_columns:
        return None
    rows: list[list[Slot | None]] = [[None] * columns for _ in timeline.devices]
    for slot in timeline.slots:
        first, last = (int(_exact(time) / column) for time in (slot.start, slot.end))
        rows[slot.device][first:last] = [slot] * (last - first)
    return PipelineGrid(float(column), rows)


def _exact(time: float) -> Fraction:
    """A time as a short fraction, so that sums of 0.1 are exact multiples of it."""
    return Fraction(time).limit_denominator(round(1 / _SHORTEST))


def pipeline_svg(panels: Sequence[tuple[str, Timeline]]) -> str:
    """Timelines below each other on one scale, each with its title; a tooltip explains each rectangle."""
    longest = max(timeline.steps for _, timeline in panels)
    shortest = min(slot.end - slot.start for _, timeline in panels for slot in timeline.slots)
    scale = min(_NARROWEST / shortest, _WIDEST / longest)
    shown = {letter(timeline, slot) for _, timeline in panels for slot in timeline.slots}
    width = _LEFT + max(longest * scale + 20, _LEGEND * len(shown))
    parts: list[str] = []
    top = 30
    for title, timeline in panels:
        parts.append(f'<text x="8" y="{top}" font-weight="bold" {_TEXT}>{escape(title)}</text>')
        parts += _panel(timeline, top + 10, scale)
        top += 10 + _ROW * timeline.pipeline.devices + _GAP
    parts += _legend([name for name in PASSES if name in shown], top - 12)
    height = top + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(timeline: Timeline, top: float, scale: float) -> list[str]:
    parts = []
    for device in range(timeline.pipeline.devices):
        y = top + _ROW * device
        parts.append(f'<text x="8" y="{y + 17}" {_TEXT}>device {device}</text>')
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{timeline.steps * scale:.1f}" height="{_ROW - 2}" fill="#eeeeee"/>'
        )
    for slot in timeline.slots:
        kind = letter(timeline, slot)
        about, colour = PASSES[kind]
        x, wide = _LEFT + slot.start * scale, (slot.end - slot.start) * scale
        y = top + _ROW * slot.device
        shade = 1 if slot.task.batch % 2 == 0 else 0.65  # so that neighbouring batches differ
        tip = (
            f"{about}: micro-batch {number(timeline, slot)} (batch {slot.task.batch}), stage {slot.task.stage}, "
            f"device {slot.device}, {slot.start:g} to {slot.end:g}"
        )
        parts.append(
            f'<g><title>{tip}</title><rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_ROW - 2}" '
            f'fill="{colour}" fill-opacity="{shade}" stroke="#ffffff"/>'
        )
        label = str(number(timeline, slot))
        fits = wide >= 8 * len(label) + 4
        parts.append(
            (f'<text x="{x + wide / 2:.1f}" y="{y + 16}" text-anchor="middle" {_TEXT}>{label}</text>' if fits else "")
            + "</g>"
        )
    return [*parts, *_axis(timeline.steps, top + _ROW * timeline.pipeline.devices, scale)]


def _axis(steps: float, y: float, scale: float) -> list[str]:
    """A mark about every 50 pixels, at a round number of steps, and one at the end."""
    rough = 50 / scale
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    marks = [gap * place for place in range(int(steps / gap) + 1)]
    marks = [mark for mark in marks if steps - mark >= 0.6 * gap]
    return [
        f'<text x="{_LEFT + mark * scale:.1f}" y="{y + 13}" text-anchor="middle" font-size="10" '
        f'font-family="system-ui, sans-serif" fill="#666">{mark:g}</text>'
        for mark in [*marks, steps]
    ]


def _legend(letters: Sequence[str], y: float) -> list[str]:
    parts = []
    for place, kind in enumerate(letters):
        about, colour = PASSES[kind]
        x = _LEFT + _LEGEND * place
        parts.append(f'<rect x="{x}" y="{y - 11}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{y + 1}" {_TEXT}>{about}</text>')
    return parts


def pipeline_page(title: str, table: Table, panels: Sequence[tuple[str, Timeline]]) -> str:
    """An HTML page with a table, and below it the timelines on one scale, each with its title."""
    return document(title, f'{table_html(table)}\n<div class="scroll">{pipeline_svg(panels)}</div>\n')


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The timeline in the Trace Event Format: a process per pipeline, a thread per device, an event per slot."""
    pipeline = timeline.pipeline
    names = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": pipeline.scheme}}]
    threads = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": device, "args": {"name": f"device {device}"}}
        for device in range(pipeline.devices)
    ]
    events = [
        {
            "name": f"{letter(timeline, slot)}{number(timeline, slot)}",
            "cat": PASSES[letter(timeline, slot)][0],
            "ph": "X",
            "pid": 0,
            "tid": slot.device,
            "ts": slot.start * STEP_MICROSECONDS,
            "dur": (slot.end - slot.start) * STEP_MICROSECONDS,
            "args": {
                "phase": pipeline.labels[slot.task.batch],
                "batch": slot.task.batch,
                "micro_batch": slot.task.micro_batch,
                "stage": slot.task.stage,
            },
        }
        for slot in timeline.slots
    ]
    return {"traceEvents": [*names, *threads, *events], "displayTimeUnit": "ms"}


def pipeline_figures(timeline: Timeline, plain: Timeline) -> dict[str, str]:
    """The figures of a timeline, with `plain` the same batches all in BP without a predictor."""
    other = "" if plain.pipeline.scheme == timeline.pipeline.scheme else f" under {plain.pipeline.scheme}"
    speed_up = f"{plain.steps / timeline.steps:.3f}"
    return {
        "steps": f"{timeline.steps:g}",
        f"all BP{other}, without a predictor": f"{plain.steps:g} steps, so the speed-up is {speed_up}",
        "devices at work": f"{100 * timeline.busy:.1f} % of the time",
        "bubbles": f"{timeline.bubbles:g} of {timeline.steps * timeline.pipeline.devices:g} device steps",
        "activations held at most": f"{', '.join(map(str, timeline.held))} micro-batches on devices 0 to "
        f"{len(timeline.held) - 1}",
    }


def pipeline_record(timeline: Timeline, plain: Timeline) -> dict[str, Any]:
    """The figures and every slot as plain values, for JSON; `plain` as in `pipeline_figures`."""
    pipeline = timeline.pipeline
    return {
        "schedule": pipeline.scheme,
        "devices": pipeline.devices,
        "microbatches": pipeline.microbatches,
        "phases": [phase.value for phase in pipeline.phases],
        "scales": [pipeline.scale_of(batch) for batch in range(len(pipeline.phases))],
        "steps": timeline.steps,
        "all_bp_steps": plain.steps,
        "speed_up": plain.steps / timeline.steps,
        "busy": timeline.busy,
        "bubbles": timeline.bubbles,
        "held": timeline.held,
        "tasks": [
            {
                "device": slot.device,
                "stage": slot.task.stage,
                "pass": "weights" if slot.task.weights else "backward" if slot.task.backward else "forward",
                "phase": pipeline.phases[slot.task.batch].value,
                "scale": pipeline.scale_of(slot.task.batch),
                "batch": slot.task.batch,
                "micro_batch": slot.task.micro_batch,
                "start": slot.start,
                "end": slot.end,
            }
            for slot in timeline.slots
        ],
    }
