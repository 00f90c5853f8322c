"""Several recipes on one data set, interleaved and resumable: the runs behind the papers' tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from adagp.data import AnyDataSet
from adagp.measure import cpu_threads
from adagp.training.comparison.interleave import interleave
from adagp.training.recipe import Recipe
from adagp.training.run.folder import RunFolder, summarise
from adagp.training.run.run import Run
from adagp.training.run.session import Session


def run_all(
    recipes: Mapping[str, Recipe],
    dataset: AnyDataSet,
    path: Path,
    *,
    threads: int | None,
    device: torch.device,
    session: Session | None = None,
    resume: bool = False,
) -> dict[str, dict[str, Any]]:
    """Train every recipe in a folder of its own below `path`.

    The folders are named by the recipes' labels, so more recipes can be added when it is resumed.

    Returns:
        The content of each run's `result.json`, by label.

    Raises:
        RunFolderError: When a folder holds another recipe, or this one and `resume` is not set.
        Interrupted: After saving, when a signal asked to stop.
    """
    with cpu_threads(threads):
        runs = []
        for label, recipe in recipes.items():
            folder = RunFolder(path / label.replace(" ", "-"))
            run = Run(recipe, dataset, device=device, label=label)
            folder.prepare(run, resume=resume)
            folder.restore(run)
            runs.append((run, folder))
        interleave(runs, session or Session())
    return {run.name: summarise(run) for run, _ in runs}
