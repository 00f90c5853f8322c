"""One small run, interrupted and whole: what damaged checkpoints and folders start from."""

import json
import shutil
from functools import partial
from pathlib import Path

from adagp.training import Recipe, Run, RunFolder
from fuzz.commands import adagp, digits, in_child, same_weights

RECIPE = Recipe(
    data="digits", epochs=2, batch_size=32, train_limit=160, test_limit=16, method="adagp", lr=0.02, threads=1
)


def prepare(folder: Path) -> None:
    """`half`: a run folder with a checkpoint in the second epoch; `whole`: the same, finished."""
    in_child(partial(_train_half, folder / "half"), folder)
    shutil.copytree(folder / "half", folder / "whole")
    if in_child(lambda: adagp("train", "--out", "whole", "--resume", "--json"), folder) != 0:
        raise RuntimeError("the undamaged run cannot be resumed, so nothing can be told of damaged ones")


def _train_half(path: Path) -> None:
    folder, run = RunFolder(path), Run(RECIPE, digits())
    folder.prepare(run, resume=False)
    while run.step_index < 7:
        if run.epoch_complete:
            run.finish_epoch()
        run.step()
    folder.save(run)


def differs(folder: Path, templates: Path) -> str | None:
    """Whoever resumes the same recipe ends with the same weights."""
    recipe = json.loads((folder / "recipe.json").read_text())
    if recipe != RECIPE.to_dict():
        return None
    if not (folder / "model.pt").is_file():
        return "ended without weights"
    return None if same_weights(folder / "model.pt", templates / "whole" / "model.pt") else "ended with other weights"
