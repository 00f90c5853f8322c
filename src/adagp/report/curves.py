"""Pictures of runs that were trained side by side, and of how well a predictor did in one of them."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adagp.report.figures import METHOD_STYLES
from adagp.report.panels import dress, viridis
from adagp.training.tasks import Metric

QUALITY_FIGURES = {
    "mape": "MAPE (as a ratio)",
    "mse": "MSE",
    "cosine": "cosine with the true gradient",
    "norm_ratio": "length over that of the true gradient",
}
"""What is told of predictions: the paper's two figures, and two that say whether applying them helps."""


@dataclass(frozen=True)
class Curve:
    """One run's figure after each epoch."""

    method: str
    values: Sequence[float]


def curves_png(panels: Mapping[str, Sequence[Curve]], metric: Metric, dpi: int = 130) -> bytes:
    """A panel for each title, with the metric over the epochs of each run."""
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
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
    return _png(figure, dpi)


def quality_png(epochs: Sequence[Mapping[str, Mapping[str, float]]], title: str, dpi: int = 130) -> bytes:
    """Four panels, MAPE, MSE, cosine and norm ratio, with a curve for each layer over the epochs.

    Args:
        epochs: After each epoch, for each layer, its figures by name.
        title: What was trained.
        dpi: Of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title, fontsize=12)
    layers = list(epochs[-1])
    colours = viridis()
    for place, (panel, (name, called)) in enumerate(
        zip(figure.subplots(2, 2).flatten(), QUALITY_FIGURES.items(), strict=True)
    ):
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
    return _png(figure, dpi)


def _png(figure: Any, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": "adagp"})
    return buffer.getvalue()
