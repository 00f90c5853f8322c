"""Pictures of comparisons under the budget protocol."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from adagp.report.comparison_plots import METHOD_STYLES
from adagp.report.leaderboard import ranked, setting_name
from adagp.report.plot import dress, figure_with, saved
from adagp.training.budget.judge import interval
from adagp.training.budget.result import BudgetResult, MethodOutcome

_OTHER = ("#777777", "-")


def leaderboard_png(result: BudgetResult, dpi: int = 130) -> bytes:
    """Two panels as PNG: the time to the target of every method, and the final score against the time given."""
    figure, panels = figure_with(12, max(4.2, 1.6 + 0.34 * len(result.methods)), 1, 2)
    seeds = len(result.settings.seeds)
    so_far = "" if result.is_complete else f", so far {result.finished} of {result.planned} runs"
    figure.suptitle(f"{setting_name(result)}: {seeds} seeds{so_far}", fontsize=12)
    _times(panels[0], result)
    _scores(panels[1], result)
    return saved(figure, dpi=dpi)


def _times(panel: Any, result: BudgetResult) -> None:
    """A dot for each seed, a diamond for the mean curve, and the interval where every seed reached the target."""
    ordered = list(reversed(ranked(result)))
    for place, outcome in enumerate(ordered):
        colour, _ = METHOD_STYLES.get(outcome.method, _OTHER)
        found = [time.seconds for time in outcome.times if time.seconds is not None]
        panel.plot(found, [place] * len(found), "o", color=colour, markersize=4, alpha=0.5)
        if len(found) == len(outcome.times) > 1:
            span = interval(found)
            panel.plot([span.low, span.high], [place, place], "-", color=colour, linewidth=2)
        if outcome.reached.seconds is None:
            panel.text(result.budget_seconds * 1.01, place, "not reached", va="center", fontsize=8)
        else:
            marker = "<" if outcome.reached.at_most else "D"
            panel.plot([outcome.reached.seconds], [place], marker, color=colour, markersize=7)
    panel.set_yticks(range(len(ordered)), [outcome.method for outcome in ordered])
    panel.set_xlim(0, result.budget_seconds * 1.25)
    target = "" if result.target is None else f" {result.metric.show(result.target.score)}"
    dress(panel, f"Time to the target{target} (< : at most; line: 95 % interval)", "reference seconds", "")


def _scores(panel: Any, result: BudgetResult) -> None:
    """One point for each length of run: the learning rate was decayed in full in each."""
    metric = result.metric
    for outcome in result.methods:
        colour, style = METHOD_STYLES.get(outcome.method, _OTHER)
        points = sorted(_points(outcome, result.settings.options.shares))
        across = [seconds for seconds, _ in points]
        panel.plot(
            across,
            [metric.scale * fmean(scores) for _, scores in points],
            style,
            color=colour,
            label=outcome.method,
            marker="o",
            markersize=3,
            linewidth=1.6,
        )
        low, high = ([metric.scale * end(scores) for _, scores in points] for end in (min, max))
        panel.fill_between(across, low, high, color=colour, alpha=0.08, linewidth=0)
    if result.target is not None:
        panel.axhline(metric.scale * result.target.score, color="black", linewidth=0.8, linestyle="--")
    panel.legend(fontsize=8, ncols=2)
    lower = "; lower is better" if metric.lower_is_better else ""
    title = f"Test {metric.label} of whole runs (band: seeds; dashed: target{lower})"
    dress(panel, title, "reference seconds", f"test {metric.heading}")


def _points(outcome: MethodOutcome, shares: Sequence[float]) -> list[tuple[float, list[float]]]:
    found = []
    for share in shares:
        runs = [run for run in outcome.runs if run.share == share]
        if runs:
            found.append((fmean(run.seconds for run in runs), [run.score for run in runs]))
    return found
