"""Figure 15 of the ADA-GP paper: the error of predictions against true gradients, by layer and epoch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adagp.files import parse_json, read_text
from adagp.report.table import Table
from adagp.reproduce import accuracy
from adagp.training import Recipe, RunFolderError, methods

CELL = accuracy.CELLS[1][0]
"""The paper's network for this figure, VGG-13."""

FIGURES = ("mape", "mse", "cosine", "norm_ratio", "trust")

Epochs = Sequence[Mapping[str, Mapping[str, float]]]


def recipe(method: str, changes: Mapping[str, Any]) -> Recipe:
    """VGG-13 on a part of CIFAR-10 by a method with predictions, some recipe fields changed."""
    known = accuracy.recipes(CELL, "tuned", (0,), full=False, changes=changes)
    return known[accuracy.label(CELL, "adagp", 0)].replace(method=method)


def of_run(folder: Path) -> list[dict[str, dict[str, float]]]:
    """The figures of each layer after each epoch of a run.

    Raises:
        RunFolderError: When the folder holds no run with predictions.
    """
    path = folder / "quality.json"
    try:
        epochs = [
            {layer: {name: _number(seen[name]) for name in FIGURES} for layer, seen in epoch["layers"].items()}
            for epoch in parse_json(read_text(path))
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(f"'{path}' cannot be read ({error}): give the folder of a run") from error
    if not epochs or not epochs[-1]:
        able = [name for name in methods.names() if methods.get(name).predictor is not None]
        raise RunFolderError(f"the run in '{folder}' predicted nothing: give one by {', '.join(able)}")
    return epochs


def table(trained: Recipe, epochs: Epochs) -> Table:
    """Each layer's figures after the last epoch, its first MAPE, and the paper's after its last epoch."""
    rows = []
    for number, (layer, last) in enumerate(epochs[-1].items(), 1):
        first = epochs[0].get(layer, {}).get("mape")
        rows.append((layer, _figure(first), *(_figure(last[name]) for name in FIGURES), _paper(number)))
    return Table(
        title=f"Figure 15: predictions in {trained.model} on {trained.data} by {trained.method}, lr {trained.lr:g}",
        columns=("layer", "first MAPE", "MAPE", "MSE", "cosine", "norm ratio", "trust", "paper's MAPE"),
        rows=rows,
        notes=(
            f"running figures of predictions against true gradients after epoch {len(epochs)} (first: after epoch 1)",
            "MAPE: as a ratio, without entries below a thousandth of the root mean square; predicting nothing gives 1",
            "trust: what predictions are scaled by before they are applied; the other figures are of unscaled ones",
            "the paper's: after 90 epochs; that of layer 1 begins at 0.56 %",
        ),
    )


def every_epoch(epochs: Epochs) -> Table:
    """A row for each layer and epoch, for programs."""
    rows = [
        (str(epoch), layer, *(f"{figures[name]:.6g}" for name in FIGURES))
        for epoch, layers in enumerate(epochs, 1)
        for layer, figures in layers.items()
    ]
    return Table("Quality of predictions", ("epoch", "layer", *FIGURES), rows, text_columns=2)


def _number(value: Any) -> float:
    """A figure from JSON, in which null stands for NaN."""
    return math.nan if value is None else float(value)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _paper(number: int) -> str:
    return "0.31 %" if number == 1 else "<0.16 %" if number <= 10 else "-"
