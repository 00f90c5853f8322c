"""The tables of a run and of a comparison, and the comparison's report: one HTML page that refers to no other file."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from adagp.report.comparison_plots import overview_png
from adagp.report.html import document, table_html
from adagp.report.table import Table
from adagp.training.batch_kinds import BATCH_KINDS
from adagp.training.comparison.result import Comparison, MethodResult
from adagp.training.run.folder import write_file
from adagp.training.tasks import Metric


def run_table(title: str, metrics: Sequence[Metric], result: Mapping[str, Any]) -> Table:
    """The result of one run."""
    shown = [metric for metric in metrics if f"test_{metric.name}" in result]
    return Table(
        title=title,
        columns=(
            *(metric.heading for metric in shown),
            "test loss",
            "train s",
            "median ms per batch",
            "updates applied",
        ),
        rows=[
            (
                *(metric.cell(result[f"test_{metric.name}"]) for metric in shown),
                f"{result['test_loss']:.4f}",
                f"{result['train_seconds']:.1f}",
                ", ".join(f"{kind} {ms:.1f}" for kind, ms in result["median_ms"].items()),
                ", ".join(f"{source} {count}" for source, count in result["counts"].items()),
            )
        ],
        text_columns=0,
    )


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
    lower = "; lower is better" if comparison.metric.lower_is_better else ""
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
            f"{comparison.metric.label}: mean ± std over {seeds}, {tested}, last epoch{lower}",
            "train s: mean over seeds; data, predictor, optimizer in the clock; no evaluation",
            "speed-up: seconds of bp / the method's, interleaved in this comparison; - if a run diverged",
            f"{' ms, '.join(kinds)} ms: median per batch over all seeds; BP includes warm-up batches",
            *(["MIXED: some layers of the batch have another source than backprop"] if "MIXED" in kinds else []),
            f"pred. ms: the predictor's median within a {both} batch",
            f"peak MB: most tensor memory a {both} batch holds above the resting model",
            *plateau,
        ),
    )


def seeds_table(comparison: Comparison) -> Table:
    """Every run."""
    metric, *others = comparison.metrics
    best = "lowest" if metric.lower_is_better else "highest"
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
        notes=(f"best: {best} of all epochs; it is chosen on the test {comparison.items}, so read it with care",),
    )


def applied_table(comparison: Comparison) -> Table:
    """The batches per phase and the layer updates per source that were applied."""
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


def write_report(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Write `figures.png` and `report.html` into `folder`, atomically, and return their paths."""
    picture = overview_png(comparison)
    png, html = folder / "figures.png", folder / "report.html"
    write_file(png, picture)
    write_file(html, page(comparison, picture).encode())
    return png, html


def page(comparison: Comparison, picture: bytes) -> str:
    """The page, verdict first; `picture` is a PNG to embed."""
    recipe = comparison.recipe
    title = f"{recipe['model']} on {recipe['data']}: methods compared"
    image = base64.b64encode(picture).decode()
    methods = "".join(
        f"<li><b>{escape(result.method)}</b>: {escape(result.summary)}</li>" for result in comparison.methods
    )
    return document(
        title,
        f'<p class="verdict">{escape(comparison.verdict)}</p>\n'
        f"{table_html(comparison_table(comparison))}\n"
        f'<p class="scroll"><img alt="Score over epochs and over seconds, cosine per layer, milliseconds per batch" '
        f'src="data:image/png;base64,{image}"></p>\n'
        f"<h2>Methods</h2>\n<ul>{methods}</ul>\n"
        f"<h2>Details</h2>\n{table_html(seeds_table(comparison))}\n{table_html(applied_table(comparison))}\n"
        f"{_reasons(comparison)}"
        f"<h2>Recipe</h2>\n{table_html(_pairs('Recipe', recipe))}\n"
        f"<h2>Environment</h2>\n{table_html(_pairs('Environment', comparison.environment))}\n",
    )


def _reasons(comparison: Comparison) -> str:
    """Why adaptive schedules changed their k:m, seed by seed; empty if k:m never changed."""
    lists = "".join(
        f"<h3>{escape(result.method)}, seed {seed.seed}</h3>\n<ul>"
        + "".join(f"<li>{escape(reason)}</li>" for reason in seed.reasons)
        + "</ul>\n"
        for result in comparison.methods
        for seed in result.seeds
        if seed.reasons
    )
    return f"<h2>Why k:m changed</h2>\n{lists}" if lists else ""


def _pairs(title: str, values: dict[str, Any]) -> Table:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name} {inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    rows = [(name, "-" if value is None else str(value)) for name, value in flat.items()]
    return Table(title, ("name", "value"), rows, text_columns=2)
