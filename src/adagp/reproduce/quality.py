"""Figure 15 of the ADA-GP paper: how near predictions come to true gradients, by layer and epoch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adagp.report import Table
from adagp.reproduce import accuracy
from adagp.training import Recipe, RunFolderError, methods

CELL = accuracy.CELLS[1][0]
"""The paper's network for this figure, VGG-13."""

Epochs = Sequence[Mapping[str, Mapping[str, float]]]


def recipe(method: str, changes: Mapping[str, Any]) -> Recipe:
    """VGG-13 on a part of CIFAR-10 by a method with predictions, and recipe fields that shall differ."""
    known = accuracy.recipes(CELL, "tuned", (0,), full=False, changes=changes)
    return known[accuracy.label(CELL, "adagp", 0)].replace(method=method)


def of_run(folder: Path) -> list[dict[str, dict[str, float]]]:
    """After each epoch of a run, each layer's figures.

    Raises:
        RunFolderError: When the folder holds no run with predictions.
    """
    path = folder / "quality.json"
    try:
        epochs = [epoch["layers"] for epoch in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"'{path}' cannot be read ({error}): give the folder of a run") from error
    if not epochs or not epochs[-1]:
        able = [name for name in methods.names() if methods.get(name).predictor is not None]
        raise RunFolderError(f"the run in '{folder}' predicted nothing: give one by {', '.join(able)}")
    return epochs


def table(trained: Recipe, epochs: Epochs) -> Table:
    """Each layer's figures after the first and the last epoch; the paper's where it gives them."""
    names = ("mape", "mse", "cosine", "norm_ratio", "trust")
    rows = []
    for number, (layer, last) in enumerate(epochs[-1].items(), 1):
        first = epochs[0].get(layer, {})
        figures = [f"{_figure(seen.get(name))}" for name in names for seen in (first, last)]
        rows.append((f"{number} {layer}", *figures, _paper(number)))
    columns = [f"{name.replace('_', ' ')}, {when}" for name in names for when in ("first", "last")]
    return Table(
        title=f"Figure 15: predictions in {trained.model} on {trained.data} by {trained.method}, lr {trained.lr:g}",
        columns=("layer", *columns, "paper's MAPE"),
        rows=rows,
        notes=(
            f"running figures after epoch 1 and after epoch {len(epochs)}, of predictions against true gradients",
            "MAPE: as a ratio, without entries below a thousandth of the root mean square; predicting nothing gives 1",
            "the paper's, in %: layer 1 from 0.56 in the first epoch to 0.31 after 90, layers 2 to 10 below 0.16",
            "trust: what predictions are scaled by before they are applied; the figures are of what is applied",
        ),
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _paper(number: int) -> str:
    return "0.56 to 0.31 %" if number == 1 else "< 0.16 %" if number <= 10 else "-"
