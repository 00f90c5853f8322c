"""Pictures of training runs: a comparison of methods, scores over epochs, the quality of predictions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import fill
from typing import Any

from adagp.report.plot import dress, figure_with, saved, viridis
from adagp.training.comparison.result import Comparison, SeedResult
from adagp.training.tasks import Metric

# Okabe and Ito's palette; line styles separate methods that share a colour.
METHOD_STYLES = {
    "bp": ("#000000", "-"),
    "progressive": ("#D55E00", "-"),
    "growing": ("#CC79A7", "-"),
    "coarse": ("#E69F00", "-"),
    "adagp": ("#0072B2", "-"),
    "adagp-paper": ("#56B4E9", "-"),
    "adaptive": ("#009E73", "-"),
    "skip": ("#D55E00", "--"),
    "mean": ("#E69F00", "--"),
    "last": ("#CC79A7", "--"),
    "momentum": ("#999999", "--"),
    "short-bp": ("#555555", ":"),
    "small-batch": ("#009E73", ":"),
    "small-size": ("#D55E00", ":"),
    "selective": ("#0072B2", ":"),
    "pruning": ("#CC79A7", ":"),
    "freezing": ("#E69F00", ":"),
    "averaging": ("#56B4E9", ":"),
    "zero": ("#D55E00", "-."),
    "random": ("#CC79A7", "-."),
    "topk": ("#009E73", "-."),
    "sampled": ("#000000", "-."),
    "economical": ("#000000", "--"),
    "prefix": ("#0072B2", "-."),
    "prefix-zero": ("#E69F00", "-."),
    "local": ("#882255", "-"),
    "table": ("#56B4E9", "-."),
    "advised": ("#F0E442", "-."),
}
QUALITY_FIGURES = {
    "mape": "MAPE (as a ratio)",
    "mse": "MSE",
    "cosine": "cosine with the true gradient",
    "norm_ratio": "length over that of the true gradient",
}
"""The figures of predictions: the paper's two, and two that say whether applying them helps."""
_TITLE_CHARACTERS = 110  # in a line, at this size and width
_BATCH_COLOURS = {"BP": "#0072B2", "COARSE": "#56B4E9", "MIXED": "#009E73", "GP": "#E69F00"}


def overview_png(comparison: Comparison, dpi: int = 130) -> bytes:
    """Four panels as PNG: the score over epochs and over seconds, cosine per layer, milliseconds per batch."""
    figure, panels = figure_with(12, 8, 2, 2)
    recipe = comparison.recipe
    title = f"{recipe['model']} on {recipe['data']}, lr {recipe['lr']:g}: {comparison.protocol}"
    figure.suptitle(fill(title, _TITLE_CHARACTERS), fontsize=12)
    _scores(panels[0], comparison, lambda seed: seed.epochs, "epochs")
    _scores(panels[1], comparison, lambda seed: seed.seconds, "training seconds")
    _cosines(panels[2], comparison)
    _milliseconds(panels[3], comparison)
    handles, labels = panels[0].get_legend_handles_labels()
    corner = "upper right" if comparison.metric.lower_is_better else "lower right"
    panels[0].legend(handles, labels, loc=corner, frameon=True, framealpha=0.9, fontsize=9)
    return saved(figure, dpi=dpi)


def _scores(panel: Any, comparison: Comparison, axis: Callable[[SeedResult], list[float]], label: str) -> None:
    metric = comparison.metric
    # The curve ends where a seed diverged: a mean over fewer seeds could not be compared.
    for result in comparison.methods:
        colour, style = METHOD_STYLES[result.method]
        across = [fmean(values) for values in zip(*(axis(seed) for seed in result.seeds), strict=False)]
        per_epoch = list(zip(*(seed.scores for seed in result.seeds), strict=False))
        mean = [metric.scale * fmean(values) for values in per_epoch]
        panel.plot(across, mean, style, color=colour, label=result.method, linewidth=1.8, marker="o", markersize=3)
        low = [metric.scale * min(values) for values in per_epoch]
        high = [metric.scale * max(values) for values in per_epoch]
        panel.fill_between(across, low, high, color=colour, alpha=0.15, linewidth=0)
    panel.set_ylim(*_score_limits(comparison))
    panel.set_xlim(left=0)
    seeds = len(comparison.methods[0].seeds)
    lower = "; lower is better" if metric.lower_is_better else ""
    title = f"Test {metric.label} over {label} (mean, band: {seeds} seeds{lower})"
    dress(panel, title, label, f"test {metric.heading}")


def _score_limits(comparison: Comparison) -> tuple[float, float]:
    """The range in which the methods differ; the first epochs may lie outside of it."""
    metric = comparison.metric
    seeds = [seed for result in comparison.methods for seed in result.seeds]
    finals = [metric.scale * seed.score for seed in seeds]
    best = metric.best(metric.scale * value for seed in seeds for value in seed.scores)
    if metric.lower_is_better:
        room = min(max(0.1 * best, max(finals) - best), best)  # a diverged run must not hide the others
        return best - 0.3 * room, best + 3 * room
    room = max(2.0, best - min(finals))
    return max(0.0, min(finals) - 2 * room), min(100.5, best + 0.3 * room)


def _cosines(panel: Any, comparison: Comparison) -> None:
    result = next((result for result in comparison.methods if result.cosines), None)
    if result is None:
        panel.text(0.5, 0.5, "no method here predicts", ha="center", va="center", transform=panel.transAxes)
        dress(panel, "Cosine of predicted and true gradient", "epochs", "cosine")
        return
    epochs = result.seeds[0].epochs
    layers = list(result.cosines)
    colours = viridis()
    for index, layer in enumerate(layers):
        colour = colours(0.9 * index / max(1, len(layers) - 1))
        panel.plot(epochs, result.cosines[layer], color=colour, linewidth=1.5, marker="o", markersize=3, label=layer)
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set_xlim(left=0)
    panel.xaxis.get_major_locator().set_params(integer=True)
    if len(layers) <= 8:
        panel.legend(fontsize=8, title="layer", title_fontsize=8)
        order = ""
    else:
        order = f", {len(layers)} layers, dark to light: first to last"
    seed = result.seeds[0].seed
    dress(panel, f"Cosine with the true gradient: {result.method}, seed {seed}{order}", "epochs", "running cosine")


def _milliseconds(panel: Any, comparison: Comparison) -> None:
    names = [result.method for result in comparison.methods]
    kinds = [kind for kind in _BATCH_COLOURS if any(kind in result.batch_ms for result in comparison.methods)]
    width = 0.8 / len(kinds)
    for turn, kind in enumerate(kinds):
        offset = (turn - (len(kinds) - 1) / 2) * width
        values = [result.batch_ms.get(kind) for result in comparison.methods]
        places = [place + offset for place, value in enumerate(values) if value is not None]
        heights = [value for value in values if value is not None]
        bars = panel.bar(places, heights, width=0.95 * width, color=_BATCH_COLOURS[kind], label=f"{kind} batch")
        panel.bar_label(bars, [f"{value:.1f}" for value in heights], fontsize=8, padding=2)
        predictor = [
            (place, result.predictor_ms[kind])
            for place, result in enumerate(comparison.methods)
            if kind in result.predictor_ms
        ]
        panel.bar(
            [place + offset for place, _ in predictor],
            [value for _, value in predictor],
            width=0.95 * width,
            facecolor="none",
            edgecolor="black",
            hatch="////",
            linewidth=0.8,
            label="predictor's share" if kind == kinds[-1] and predictor else None,
        )
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-0.6, len(names) - 0.4)
    panel.margins(y=0.25)
    panel.legend(fontsize=9, loc="upper center", ncols=4)
    dress(panel, "Median milliseconds per batch", "", "ms")


@dataclass(frozen=True)
class Curve:
    """The score of one run after each epoch."""

    method: str
    values: Sequence[float]


def curves_png(panels: Mapping[str, Sequence[Curve]], metric: Metric, dpi: int = 130) -> bytes:
    """A panel per title, with the metric of each run over its epochs."""
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = figure_with(4.6 * columns, 3.4 * rows, rows, columns)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        seen: set[str] = set()
        for curve in curves:
            colour, style = METHOD_STYLES[curve.method]
            name = None if curve.method in seen else curve.method
            seen.add(curve.method)
            epochs, values = range(1, len(curve.values) + 1), [metric.scale * value for value in curve.values]
            panel.plot(epochs, values, style, color=colour, label=name, linewidth=1.8, marker="o", markersize=4)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.legend(fontsize=8)
        dress(panel, title, "epochs", f"test {metric.heading}")
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    return saved(figure, dpi=dpi)


@dataclass(frozen=True)
class LearningCurve:
    """Training loss and score of one run after each epoch; `name` tells runs of the same method apart."""

    name: str
    method: str
    losses: Sequence[float]
    scores: Sequence[float]


def learning_png(
    figures: Mapping[str, Sequence[LearningCurve]], metric: Metric, file_format: str = "png", dpi: int = 130
) -> bytes:
    """Two panels per title: the training loss of each run over its epochs, and its score."""
    picture, axes = figure_with(10, 3.4 * len(figures), len(figures), 2)
    for place, (title, curves) in enumerate(figures.items()):
        for panel, up, values in (
            (axes[2 * place], "training loss", [curve.losses for curve in curves]),
            (
                axes[2 * place + 1],
                f"test {metric.heading}",
                [[metric.scale * score for score in curve.scores] for curve in curves],
            ),
        ):
            for curve, over_epochs in zip(curves, values, strict=True):
                colour, style = METHOD_STYLES[curve.method]
                epochs = range(1, len(over_epochs) + 1)
                panel.plot(
                    epochs, over_epochs, style, color=colour, label=curve.name, linewidth=1.6, marker="o", markersize=3
                )
            panel.xaxis.get_major_locator().set_params(integer=True)
            dress(panel, title, "epochs", up)
        axes[2 * place].legend(fontsize=8)
    return saved(picture, file_format, dpi)


def quality_png(epochs: Sequence[Mapping[str, Mapping[str, float]]], title: str, dpi: int = 130) -> bytes:
    """Four panels, MAPE, MSE, cosine and norm ratio, with a curve for each layer over the epochs.

    Args:
        epochs: After each epoch, for each layer, its figures by name.
        title: What was trained.
        dpi: Resolution of the picture.
    """
    figure, axes = figure_with(12, 8, 2, 2)
    figure.suptitle(title, fontsize=12)
    layers = list(epochs[-1])
    colours = viridis()
    for place, (panel, (name, called)) in enumerate(zip(axes, QUALITY_FIGURES.items(), strict=True)):
        for index, layer in enumerate(layers):
            values = [layers_of.get(layer, {}).get(name, math.nan) for layers_of in epochs]
            colour = colours(0.92 * index / max(1, len(layers) - 1))
            panel.plot(
                range(1, len(epochs) + 1), values, color=colour, linewidth=1.6, marker="o", markersize=3, label=layer
            )
        if name == "mse":
            panel.set_yscale("log")
        panel.xaxis.get_major_locator().set_params(integer=True)
        if place == 0:
            panel.legend(fontsize=7, ncols=2, title="layer", title_fontsize=8)
        dress(panel, called, "epochs", name.replace("_", " "))
    return saved(figure, dpi=dpi)
