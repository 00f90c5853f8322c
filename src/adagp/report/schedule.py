"""A schedule as a table of epochs, as a grid of layers and batches, and the grid as a picture."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from adagp import Plan
from adagp.report.plot import figure_with, saved
from adagp.report.table import Table
from adagp.schedules.sources import spec, specs
from adagp.training import RecipeError
from adagp.training.batch_kinds import batch_kind

_MOST_SHOWN, _MOST_DRAWN, _MOST_COUNTED = 10_000, 500, 5_000_000  # batches


@dataclass(frozen=True)
class ScheduleGrid:
    """The phases and sources of some batches of a schedule.

    Attributes:
        batches: The numbers of the batches, counted from 1.
        phases: The phase of each batch.
        scales: The fraction of their size that the samples of each batch have.
        sources: For every layer, its source in each batch.
    """

    batches: list[int]
    phases: list[str]
    scales: list[float]
    sources: dict[str, list[str]]

    @property
    def is_coarse(self) -> bool:
        """Whether some batches have smaller samples."""
        return any(scale < 1 for scale in self.scales)

    def shares(self) -> dict[str, float]:
        """The share of each source that occurs, over all layers and batches."""
        counts = Counter(source for row in self.sources.values() for source in row)
        return {source: counts[source] / counts.total() for source in specs() if source in counts}


def schedule_grid(schedule: Callable[[int], Plan], layers: Sequence[str], steps: Sequence[int]) -> ScheduleGrid:
    """The grid of these steps of a schedule.

    Raises:
        RecipeError: For more steps than can be read.
    """
    _check_batches(len(steps), _MOST_SHOWN, "shown")
    plans = [schedule(step) for step in steps]
    return ScheduleGrid(
        batches=[step + 1 for step in steps],
        phases=[plan.phase.value for plan in plans],
        scales=[plan.scale for plan in plans],
        sources={layer: [plan.source(layer) for plan in plans] for layer in layers},
    )


def _check_batches(batches: int, most: int, what: str) -> None:
    if batches > most:
        raise RecipeError(f"batches = {batches}: at most {most:,} can be {what}; schedules repeat, so give fewer")


def grid_picture(grid: ScheduleGrid, title: str, file_format: str = "png", dpi: int = 110) -> bytes:
    """The grid as PNG or SVG.

    Raises:
        RecipeError: For a grid too wide for a picture.
    """
    _check_batches(len(grid.batches), _MOST_DRAWN, "drawn")
    from matplotlib.patches import Patch, Rectangle

    columns, rows = len(grid.batches), len(grid.sources)
    figure, (panel,) = figure_with(max(4.5, 1.8 + 0.32 * columns), 1.2 + 0.24 * rows)
    for row, sources in enumerate(grid.sources.values()):
        for column, source in enumerate(sources):
            style = spec(source)
            panel.add_patch(Rectangle((column, row), 1, 1, facecolor=style.colour, edgecolor="white", linewidth=1.5))
            panel.text(column + 0.5, row + 0.5, style.letter, ha="center", va="center", fontsize=8)
    panel.set_xlim(0, columns)
    panel.set_ylim(rows, 0)
    phases = grid.phases if set(grid.phases) != {"BP"} else [""] * columns
    sizes = [f"x{scale:g}" if grid.is_coarse else "" for scale in grid.scales]
    labels = ["\n".join(filter(None, map(str, lines))) for lines in zip(grid.batches, phases, sizes, strict=True)]
    panel.set_xticks([place + 0.5 for place in range(columns)], labels)
    panel.set_yticks([place + 0.5 for place in range(rows)], list(grid.sources))
    panel.tick_params(length=0, labelsize=8)
    panel.set_xlabel("batch", fontsize=9)
    panel.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=10)
    handles = [
        Patch(facecolor=spec(source).colour, label=f"{spec(source).letter}  {source} {100 * share:.0f} %")
        for source, share in grid.shares().items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return saved(figure, file_format, dpi)


def schedule_table(title: str, schedule: Callable[[int], Plan], epochs: int, steps_per_epoch: int) -> Table:
    """Phases of a schedule epoch by epoch; neighbouring epochs with the same counts share a row.

    Raises:
        RecipeError: For more batches than can be counted within seconds.
    """
    if epochs * steps_per_epoch > _MOST_COUNTED:
        raise RecipeError(
            f"epochs x steps_per_epoch = {epochs} x {steps_per_epoch} is too many batches to count: at most "
            f"{_MOST_COUNTED:,}; give fewer steps per epoch, the shares stay the same"
        )
    per_epoch: list[tuple[str, tuple[int, ...]]] = []
    work = 0.0
    for epoch in range(epochs):
        plans = [schedule(step) for step in range(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch)]
        counts = Counter(batch_kind(plan) for plan in plans)
        notes = " ".join(dict.fromkeys(plan.note for plan in plans))
        per_epoch.append((notes, tuple(counts[kind] for kind in _MARKS)))
        work += sum(plan.scale**2 for plan in plans)
    cheap = "COARSE" if any(counts[2] for _, counts in per_epoch) else "GP"
    shown = ("WARMUP", "BP", cheap)
    rows = []
    first = 1
    for (notes, counted), group in groupby(per_epoch):
        length = len(list(group))
        label = str(first) if length == 1 else f"{first}-{first + length - 1}"
        by_kind = dict(zip(_MARKS, counted, strict=True))
        share = _percent(by_kind[cheap] / steps_per_epoch)
        rows.append((label, notes, *(str(by_kind[kind]) for kind in shown), share, _strip(by_kind)))
        first += length
    total = epochs * steps_per_epoch
    total_cheap = sum(dict(zip(_MARKS, counted, strict=True))[cheap] for _, counted in per_epoch)
    legend = ", ".join(f"{_MARKS[kind]} {kind if kind != 'WARMUP' else 'warm-up'}" for kind in shown)
    notes_below = [
        f"batches per epoch of {steps_per_epoch}; {legend}",
        f"{total_cheap} of {total} batches ({_percent(total_cheap / total)}) are {cheap}",
    ]
    if cheap == "COARSE":
        notes_below.append(f"{_percent(work / total)} of the work of as many full batches, by the number of pixels")
    return Table(
        title=title,
        columns=("epochs", f"{cheap}:BP" if cheap == "GP" else "note", *shown, f"{cheap} share", "share of an epoch"),
        rows=rows,
        notes=tuple(notes_below),
        text_columns=2,
    )


_MARKS = {"WARMUP": "#", "BP": "=", "COARSE": ":", "GP": "."}
"""The character of each kind of batch."""


def _strip(counts: dict[str, int], width: int = 20) -> str:
    total, before, text = sum(counts.values()), 0, ""
    for kind, count in counts.items():
        before += count
        text += _MARKS[kind] * (round(width * before / total) - len(text))
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
