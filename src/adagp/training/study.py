"""Several recipes on one data set, side by side and resumable: what the papers' tables are reproduced with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from adagp.data import AnyDataSet
from adagp.training.defaults import CHECKPOINT_SECONDS
from adagp.training.environment import cpu_threads
from adagp.training.interrupt import Interrupt
from adagp.training.loop import Run
from adagp.training.observers import Observer
from adagp.training.recipe import Recipe
from adagp.training.runfolder import RunFolder, summarise
from adagp.training.turns import take_turns


def study(
    recipes: Mapping[str, Recipe],
    dataset: AnyDataSet,
    path: Path,
    *,
    threads: int | None,
    device: torch.device,
    observer: Observer,
    interrupt: Interrupt,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> dict[str, dict[str, Any]]:
    """Train every recipe in a folder of its own below `path`, in turns, and return what each run's `result.json` has.

    The folders are named by the recipes' labels, so a study that is resumed with more recipes keeps what is done.

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
        take_turns(runs, observer=observer, interrupt=interrupt, checkpoint_seconds=checkpoint_seconds)
    return {run.name: summarise(run) for run, _ in runs}
