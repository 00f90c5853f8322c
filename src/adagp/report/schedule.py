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

_MOST_SHOWN, _MOST_DRAWN, _MOST_COUNTED = 10_000, 500, 5_000_000  # batches


@dataclass(frozen=True)
class ScheduleGrid:
    """The phases and sources of some batches of a schedule.

    Attributes:
        batches: The numbers of the batches, counted from 1.
        phases: The phase of each batch.
        sources: For every layer, its source in each batch.
    """

    batches: list[int]
    phases: list[str]
    sources: dict[str, list[str]]

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
    labels = [f"{batch}\n{phase}".strip() for batch, phase in zip(grid.batches, phases, strict=True)]
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
    per_epoch: list[tuple[str, int, int, int]] = []
    for epoch in range(epochs):
        plans = [schedule(step) for step in range(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch)]
        phases = [plan.phase.value for plan in plans]
        notes = " ".join(dict.fromkeys(plan.note for plan in plans))
        per_epoch.append((notes, phases.count("WARMUP"), phases.count("BP"), phases.count("GP")))
    rows = []
    first = 1
    for (notes, warmup, bp, gp), group in groupby(per_epoch):
        length = len(list(group))
        label = str(first) if length == 1 else f"{first}-{first + length - 1}"
        share = _percent(gp / steps_per_epoch)
        rows.append((label, notes, str(warmup), str(bp), str(gp), share, _strip(warmup, bp, gp)))
        first += length
    total, total_gp = epochs * steps_per_epoch, sum(epoch[3] for epoch in per_epoch)
    return Table(
        title=title,
        columns=("epochs", "GP:BP", "WARMUP", "BP", "GP", "GP share", "share of an epoch"),
        rows=rows,
        notes=(
            f"batches per epoch of {steps_per_epoch}; # warm-up, = BP, . GP",
            f"{total_gp} of {total} batches ({_percent(total_gp / total)}) are GP",
        ),
        text_columns=2,
    )


def _strip(warmup: int, bp: int, gp: int, width: int = 20) -> str:
    total = warmup + bp + gp
    marks = [round(width * edge / total) for edge in (warmup, warmup + bp, total)]
    return "#" * marks[0] + "=" * (marks[1] - marks[0]) + "." * (marks[2] - marks[1])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
