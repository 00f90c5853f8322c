"""Advice before a training: its progress, and the plan that a recipe gets from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from adagp.cli.common import progress_line
from adagp.training import Recipe, RecipeError

ADVISE = "advise"
"""As a schedule: the plan that pays, measured before training."""
SECONDS = 60.0


def with_method_of_schedule(given: Mapping[str, Any]) -> dict[str, Any]:
    """Recipe fields with the method that their schedule means: `advised` for `--schedule advise`, `table` for a file.

    Raises:
        RecipeError: When another method is named beside `--schedule advise`.
    """
    fields = dict(given)
    if fields.get("schedule") == ADVISE:
        del fields["schedule"]
        if fields.setdefault("method", "advised") != "advised":
            raise RecipeError(f"schedule advise contradicts method {fields['method']}: leave the method out")
    elif "\n" in (fields.get("schedule") or ""):  # the text of a table
        fields.setdefault("method", "table")
    return fields


def with_plan(recipe: Recipe, data_root: Path | None, device: str | None, seconds: float) -> Recipe:
    """The recipe with the plan that pays as its schedule, measured now; what was found is printed on stderr.

    Where none pays, every gradient is exact.
    """
    from adagp import data
    from adagp.cli.session import chosen_device
    from adagp.training.advising import advise_recipe
    from adagp.training.planning import with_exact_table
    from adagp.training.run.world import refuse_torchrun

    refuse_torchrun("advise")
    dataset = data.load_any(recipe.data, data_root)
    with AdviceBar(seconds) as bar:
        where = chosen_device(device)
        advice = advise_recipe(recipe, dataset, where, as_trained=True, seconds=seconds, progress=bar.report)
    for sentence in advice.verdict:
        progress_line(sentence)
    if advice.plan is None:
        progress_line(f"No plan: {advice.why_no_plan}. It trains by plain backpropagation.")
        table = with_exact_table(recipe).schedule
        return recipe.replace(schedule=f"# advised: there is no plan, so every gradient is exact\n{table}")
    if not advice.plan.changed:
        reason = "The plan is not sure to pay" if advice.plan.option else "No plan pays here"
        progress_line(f"{reason}. It trains by plain backpropagation.")
    return recipe.replace(schedule=advice.plan.table)


class AdviceBar:
    """Progress on stderr with the time left; only on a terminal."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is how long the measurement takes."""
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._seconds = seconds
        self._task = self._progress.add_task("starting", total=seconds)

    def __enter__(self) -> "AdviceBar":
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def report(self, share: float, text: str) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=share * self._seconds, description=text)
