"""Waveforms of the RTL: a table of what units and channels did, and a picture of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from adagp.report.plot import dress, figure_with, saved
from adagp.report.table import Table

if TYPE_CHECKING:
    from adagp.accelerator.rtl.waves import CoreWaves

# Okabe and Ito's colour-blind safe palette.
_STATES = {
    "LOAD": ("loads a memory", "#56B4E9"),
    "WEIGHTS": ("shifts weights in", "#E69F00"),
    "STREAM": ("streams inputs", "#009E73"),
    "CROSS": ("last inputs cross the array", "#F0E442"),
    "SETTLE": ("writes the last sums", "#CC79A7"),
    "READ": ("drains sums", "#0072B2"),
    "FLUSH": ("writes the last beats", "#999999"),
    "moves": ("a beat moves", "#000000"),
    "waits": ("a beat waits for the other side", "#D55E00"),
}


def waves_table(title: str, found: "Mapping[str, CoreWaves]") -> Table:
    """Cycles of every unit and channel in each state."""
    rows = [
        (unit, row, _STATES[state][0], f"{count:,}", f"{100 * count / waves.cycles:.1f}")
        for unit, waves in found.items()
        for row in waves.rows
        for state, count in waves.counts(row).items()
    ]
    cycles = max(waves.cycles for waves in found.values())
    return Table(title, ("core", "", "what", "cycles", "%"), rows, (f"{cycles:,} cycles in all",), text_columns=3)


def waves_picture(
    found: "Mapping[str, CoreWaves]", title: str, first: int, cycles: int, file_format: str = "png"
) -> bytes:
    """A panel for each core, a row for each unit and channel, coloured by what it does."""
    from matplotlib.patches import Patch

    figure, panels = figure_with(11, 1.1 + 2.2 * len(found), len(found))
    shown: set[str] = set()
    for panel, (unit, waves) in zip(panels, found.items(), strict=True):
        for place, spans in enumerate(waves.rows.values()):
            for state in _STATES:
                bars = [
                    (span.start, span.end - span.start)
                    for span in spans
                    if span.state == state and span.end > first and span.start < first + cycles
                ]
                if bars:
                    shown.add(state)
                    panel.broken_barh(bars, (place - 0.4, 0.8), color=_STATES[state][1], linewidth=0)
        panel.set_yticks(range(len(waves.rows)), list(waves.rows), fontsize=8)
        panel.set_ylim(len(waves.rows) - 0.4, -0.6)
        panel.set_xlim(first, first + cycles)
        dress(panel, f"{unit} core", "cycle" if panel is panels[-1] else "", "")
    handles = [Patch(color=colour, label=label) for state, (label, colour) in _STATES.items() if state in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    return saved(figure, file_format)
