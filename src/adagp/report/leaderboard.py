"""Tables of comparisons under the budget protocol."""

from adagp.report.table import Table
from adagp.training.budget.judge import Interval, Reached, Speed
from adagp.training.budget.result import BudgetResult, MethodOutcome
from adagp.training.tasks import Metric


def setting_name(result: BudgetResult) -> str:
    """What was trained, in a few words."""
    recipe = result.settings.recipe
    pretraining = result.settings.options.pretraining(recipe)
    start = "" if pretraining is None else f", from weights trained on {pretraining.data}"
    return f"{recipe.model} on {recipe.data}{start}"


def method_table(result: BudgetResult) -> Table:
    """Methods side by side, the soonest at the target first."""
    metric, ordered = result.metric, ranked(result)
    seeds = len(result.settings.seeds)
    shares = ", ".join(f"{share:g}" for share in result.settings.options.shares)
    better = "; lower is better" if metric.lower_is_better else ""
    return Table(
        title=f"{setting_name(result)}: {result.budget_seconds:.0f} reference seconds each",
        columns=(
            "method",
            metric.heading,
            "against bp",
            "p",
            "train loss",
            "s to target",
            "x sooner than bp",
            "lr",
            "batch",
            "verdict",
        ),
        rows=[_row(outcome, metric) for outcome in ordered],
        notes=(
            (
                f"{metric.label}: mean and 95 % interval over seeds in the whole budget, {result.test_items} test "
                f"{result.items}{better}"
            ),
            "against bp: mean of the differences paired by seed, 95 % interval; p: paired t test, two-sided",
            (
                f"s to target: from the final scores of runs with {shares} of the budget, each with its learning rate "
                "fully decayed"
            ),
            "lr: chosen on validation items; * at the edge of the grid",
            f"reference seconds: batches x the cost of a batch ({result.statistic})",
            f"{seeds} seeds; 5 allow a claim, 3 a 'so far'",
        ),
    )


def notes_line(result: BudgetResult) -> str:
    """The target, and how far the comparison has come."""
    target, metric = result.target, result.metric
    said = "The target is not known yet"
    if target is not None:
        said = (
            f"The target, {metric.show(target.score)}, is what bp reached on average in {target.share:g} of the budget"
        )
    return f"{said}. {result.finished} of {result.planned} runs are finished."


def ranked(result: BudgetResult) -> list[MethodOutcome]:
    """Methods by their time to the target, then by their score."""

    def key(outcome: MethodOutcome) -> tuple[float, float]:
        seconds = outcome.reached.seconds
        return (float("inf") if seconds is None else seconds, -result.metric.gain(outcome.score.mean, 0.0))

    return sorted(result.methods, key=key)


def _row(outcome: MethodOutcome, metric: Metric) -> tuple[str, ...]:
    loss = outcome.train_loss
    return (
        outcome.method,
        _with_half(outcome.score, metric),
        "-" if outcome.gain is None else _with_half(outcome.gain, metric, sign=True),
        "-" if outcome.gain_p is None else f"{outcome.gain_p:.3f}",
        "-" if loss is None else f"{loss:.3f}",
        reached_cell(outcome.reached),
        speed_cell(outcome.speed),
        f"{outcome.candidate.lr:g}{'*' if outcome.at_edge else ''}",
        str(outcome.candidate.batch_size),
        outcome.verdict,
    )


def _with_half(found: Interval, metric: Metric, *, sign: bool = False) -> str:
    text = f"{metric.scale * found.mean:+.2f}" if sign else metric.cell(found.mean)
    return text if found.high is None else f"{text} ±{metric.scale * (found.high - found.mean):.2f}"


def reached_cell(reached: Reached) -> str:
    """When the target was reached, as a cell."""
    if reached.seconds is None:
        return "not reached"
    return f"{'<= ' if reached.at_most else ''}{reached.seconds:.0f}"


def speed_cell(found: Speed | None) -> str:
    """How much sooner, as a cell."""
    if found is None or found.ratio is None:
        return "-"
    bounds = "" if found.low is None or found.high is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{'>= ' if found.bound else ''}{found.ratio:.2f}{bounds}"
