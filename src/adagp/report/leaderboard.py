"""Tables of comparisons under the budget protocol."""

from collections.abc import Sequence
from textwrap import fill

from adagp.report.table import Table, to_markdown
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
        title=f"{setting_name(result)}: {result.budget_seconds:.3g} reference seconds each",
        columns=(
            "method",
            metric.heading,
            "against bp",
            "p",
            "train loss",
            "s",
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
            "s: spent in the whole budget; methods that decide while they train may spend more or less",
            "lr: chosen on validation items; * at the edge of the grid",
            "reference seconds: batches x the cost of a batch",
            f"cost: {result.statistic}",
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
        f"{outcome.seconds:.3g}",
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
    return f"{'<= ' if reached.at_most else ''}{reached.seconds:.3g}"


def speed_cell(found: Speed | None) -> str:
    """How much sooner, as a cell."""
    if found is None or found.ratio is None:
        return "-"
    bounds = "" if found.low is None or found.high is None else f" ({found.low:.2f} to {found.high:.2f})"
    sign = {"at least": ">= ", "at most": "<= "}.get(found.bound, "")
    return f"{sign}{found.ratio:.2f}{bounds}"


def command(result: BudgetResult, method: str) -> str:
    """The command that runs one row of a leaderboard again."""
    names = "bp" if method == "bp" else f"bp,{method}"
    seeds = ",".join(map(str, result.settings.seeds))
    origin = f" {result.settings.origin}" if result.settings.origin else ""
    return f"adagp compare --protocol budget{origin} --methods {names} --seeds {seeds}"


def head_table(results: Sequence[BudgetResult]) -> Table:
    """One row for each setting: the method that reaches plain backpropagation's score soonest."""
    return Table(
        title="Soonest at the target",
        columns=("setting", "seeds", "target", "bp s", "soonest", "s", "x sooner than bp", "verdict"),
        rows=[_head_row(result) for result in results],
        notes=("s: reference seconds; the target is what tuned bp reaches in the middle budget",),
        text_columns=1,
    )


def _head_row(result: BudgetResult) -> tuple[str, ...]:
    others = [outcome for outcome in ranked(result) if outcome.method != "bp"]
    plain = next((outcome for outcome in result.methods if outcome.method == "bp"), None)
    target = "-" if result.target is None else result.metric.show(result.target.score)
    row = (
        setting_name(result),
        str(len(result.settings.seeds)),
        target,
        "-" if plain is None else reached_cell(plain.reached),
    )
    if not others:
        return (*row, "-", "-", "-", "-")
    best = others[0]
    return (*row, best.method, reached_cell(best.reached), speed_cell(best.speed), best.verdict)


def page(results: Sequence[BudgetResult], pictures: Sequence[str]) -> str:
    """The leaderboard as a Markdown page; `pictures` are the names of one picture for each setting."""
    parts = [_INTRODUCTION, to_markdown(head_table(results))]
    for result, picture in zip(results, pictures, strict=True):
        table = method_table(result)
        rows = [(*row, f"`{command(result, row[0])}`") for row in table.rows]
        shown = Table(table.title, (*table.columns, "run it again"), rows, table.notes, table.text_columns)
        parts += [
            f"## {setting_name(result)}\n",
            fill(f"{notes_line(result)} {_machine(result)}", 115) + "\n",
            to_markdown(shown),
            f"![Time to the target, and final score against time: {setting_name(result)}]({picture})\n",
        ]
    return "\n".join(parts)


_INTRODUCTION = """# Which method trains best in the same time?

Every method gets the same reference seconds: batches x the cost of a batch, measured once and side by side. Its
learning rate is chosen on validation items and decays in full. Plain backpropagation, the rival of all, also chooses
its batch size. [How it is done](compare.md#the-budget-protocol); [what the rivals are](rivals.md).
`adagp leaderboard RUNS --page FILE` writes this page from run folders.
"""


def _machine(result: BudgetResult) -> str:
    environment = result.environment
    threads = environment.get("threads")
    return f"Costs were measured on {environment.get('device_name')}, {threads} thread{'' if threads == 1 else 's'}."
