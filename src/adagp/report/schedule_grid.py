"""A schedule as a grid, rows layers and columns batches: what the terminal shows, and the same as a picture."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adagp import Plan
from adagp.report.panels import saved
from adagp.schedules.sources import spec, specs

PICTURE_FORMATS = ("png", "svg")
_MOST_SHOWN, _MOST_DRAWN = 10_000, 500


@dataclass(frozen=True)
class ScheduleGrid:
    """What some batches of a schedule do.

    Attributes:
        batches: Their numbers, counted from 1.
        phases: The phase of each.
        sources: For every layer, its source in each.
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
        RecipeError: For more steps than anyone can look at.
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
        from adagp.training import RecipeError  # brings torch: only who has an error waits for it

        raise RecipeError(f"batches = {batches}: at most {most:,} can be {what}; schedules repeat, so give fewer")


def grid_picture(grid: ScheduleGrid, title: str, file_format: str = "png", dpi: int = 110) -> bytes:
    """The grid as PNG or SVG.

    Raises:
        RecipeError: For a grid that is too wide for a picture.
    """
    _check_batches(len(grid.batches), _MOST_DRAWN, "drawn")
    from matplotlib.figure import Figure  # here, so that who draws nothing does not wait for it
    from matplotlib.patches import Patch, Rectangle

    columns, rows = len(grid.batches), len(grid.sources)
    figure = Figure(figsize=(max(4.5, 1.8 + 0.32 * columns), 1.2 + 0.24 * rows), layout="constrained")
    panel = figure.subplots()
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
