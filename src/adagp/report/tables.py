"""The tables of a comparison and of a schedule."""

from collections.abc import Callable
from itertools import groupby

from adagp import Plan
from adagp.report.table import Table
from adagp.training import RecipeError
from adagp.training.comparison.result import Comparison, MethodResult
from adagp.training.planning import BATCH_KINDS
from adagp.training.tasks import Metric

_MOST_BATCHES = 5_000_000


def comparison_table(comparison: Comparison) -> Table:
    """The methods side by side."""
    count = len(comparison.methods[0].seeds)
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    lost = [
        f"{result.method} diverged in {result.diverged} of {count} runs; they ended early with the figures shown"
        for result in comparison.methods
        if result.diverged
    ]
    plateau = (
        [f"learning rate: lowered when the test loss stalls; no {comparison.items} were held out for validation"]
        if comparison.recipe.get("lr_schedule") == "plateau"
        else []
    )
    tested = f"{comparison.test_items} test {comparison.items}"
    kinds = _kinds(comparison)
    both = " / ".join(kinds)
    return Table(
        title=f"{comparison.recipe['model']} on {comparison.recipe['data']}: {comparison.protocol}",
        columns=(
            "method",
            comparison.metric.heading,
            "train s",
            "speed-up",
            *(f"{kind} ms" for kind in kinds),
            "pred. ms",
            "peak MB",
        ),
        rows=[_method_row(result, kinds, comparison.metric) for result in comparison.methods],
        notes=(
            *lost,
            f"{comparison.metric.label}: mean ± std over {seeds}, {tested}, last epoch",
            "train s: mean over seeds; data, predictor, optimizer in the clock; no evaluation",
            "speed-up: seconds of bp / the method's, interleaved in this comparison; none where a run diverged",
            f"{' ms, '.join(kinds)} ms: median per batch over all seeds; BP includes warm-up batches",
            *(["MIXED: some layers of the batch have another source than backprop"] if "MIXED" in kinds else []),
            f"pred. ms: the predictor's median within a {both} batch",
            f"peak MB: most tensor memory a {both} batch holds above the resting model",
            *plateau,
        ),
    )


def seeds_table(comparison: Comparison) -> Table:
    """Every single run."""
    metric, *others = comparison.metrics
    return Table(
        title="Each seed",
        columns=(
            "method",
            "seed",
            metric.heading,
            "best",
            *(other.heading for other in others),
            "test loss",
            "train s",
        ),
        rows=[
            (
                result.method,
                str(seed.seed),
                metric.cell(seed.score),
                metric.cell(seed.best_score),
                *(other.cell(seed.metrics[other.name]) if other.name in seed.metrics else "-" for other in others),
                f"{seed.test_loss:.4f}",
                f"{seed.train_seconds:.1f}",
            )
            for result in comparison.methods
            for seed in result.seeds
        ],
        notes=(f"best: highest of all epochs; it is chosen on the test {comparison.items}, so read it with care",),
    )


def applied_table(comparison: Comparison) -> Table:
    """What was really applied: batches per phase and layer updates per source."""
    sources = sorted({name for result in comparison.methods for name in result.counts})
    kinds = [
        kind
        for kind in BATCH_KINDS
        if kind != "MIXED" or any(result.batches.get(kind) for result in comparison.methods)
    ]
    return Table(
        title="Applied",
        columns=("method", *(f"{kind} batches" for kind in kinds), *(f"{name} updates" for name in sources)),
        rows=[
            (
                result.method,
                *(str(result.batches.get(kind, 0)) for kind in kinds),
                *(str(result.counts.get(name, 0)) for name in sources),
            )
            for result in comparison.methods
        ],
        notes=("batches and layer updates, summed over seeds",),
    )


def schedule_table(title: str, schedule: Callable[[int], Plan], epochs: int, steps_per_epoch: int) -> Table:
    """Phases of a schedule epoch by epoch; neighbouring epochs with the same counts share a row.

    Raises:
        RecipeError: For more batches than can be counted while one waits.
    """
    if epochs * steps_per_epoch > _MOST_BATCHES:
        raise RecipeError(
            f"epochs x steps_per_epoch = {epochs} x {steps_per_epoch} are too many batches to count: at most "
            f"{_MOST_BATCHES:,}; give fewer steps per epoch, the shares stay the same"
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


def _kinds(comparison: Comparison) -> list[str]:
    """The kinds of batches to show: those that happened, and always BP."""
    happened = {kind for result in comparison.methods for kind in result.batch_ms}
    return [kind for kind in ("BP", "MIXED", "GP") if kind == "BP" or kind in happened]


def _method_row(result: MethodResult, kinds: list[str], metric: Metric) -> tuple[str, ...]:
    spread = "" if result.score_std is None else f"±{metric.cell(result.score_std)}"
    return (
        result.method,
        f"{metric.cell(result.score)}{spread}",
        f"{result.train_seconds:.1f}",
        "-" if result.speedup is None else f"{result.speedup:.2f}",
        *(_number(result.batch_ms.get(kind)) for kind in kinds),
        _each(kinds, result.predictor_ms, 1.0),
        _each(kinds, result.peak_bytes, 1e6),
    )


def _each(kinds: list[str], values: dict[str, float] | dict[str, int], unit: float) -> str:
    if not values:
        return "-"
    return "/".join(_number(values[kind] / unit if kind in values else None) for kind in kinds)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
