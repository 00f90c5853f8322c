"""A run that leaves the finite numbers stops at once, keeps its last good checkpoint, and says so in its folder."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from adagp.data import DataSet
from adagp.training import DivergedError, Recipe, Run, RunFolder, train
from adagp.training.checkpoint import load
from adagp.training.interrupt import Interrupt
from adagp.training.observers import Observer
from adagp.training.turns import take_turns

NAN = float("nan")


def begin(path: Path, recipe: Recipe, digits: DataSet) -> tuple[Run, RunFolder]:
    run, folder = Run(recipe, digits), RunFolder(path)
    folder.prepare(run, resume=False)
    return run, folder


def break_gradient(run: Run, name: str, step: int) -> None:
    """From batch `step` on, the true gradient of one parameter is NaN while the loss is finite."""
    run.model.get_parameter(name).register_hook(lambda grad: grad * NAN if run.step_index >= step else grad)


def run_to_its_end(run: Run, folder: RunFolder) -> None:
    train(run, folder, observer=Observer(), interrupt=Interrupt(), checkpoint_seconds=0)


@pytest.mark.parametrize("method", ["bp", "adagp", "mean", "zero"])
def test_a_gradient_that_is_not_finite_ends_the_run_before_it_is_applied(
    tmp_path: Path, recipe: Recipe, digits: DataSet, method: str
) -> None:
    run, folder = begin(tmp_path, dataclasses.replace(recipe, method=method), digits)
    name = next(name for name, _ in run.model.named_parameters() if name.endswith("weight"))
    break_gradient(run, name, step=4)
    with pytest.raises(DivergedError, match=f"parameter '{name}' is not finite"):
        run_to_its_end(run, folder)
    mark = json.loads((tmp_path / "diverged.json").read_text())
    assert mark["batch"] == run.step_index
    assert name in mark["reason"]
    saved = load(folder.checkpoint_path, run.device)
    assert saved["gp"]["progress"]["step_index"] == run.step_index
    assert all(bool(value.isfinite().all()) for value in saved["model"].values())
    assert not (tmp_path / "result.json").exists()


def test_weights_that_leave_the_finite_numbers_end_the_run_at_the_evaluation(
    tmp_path: Path, recipe: Recipe, digits: DataSet
) -> None:
    run, folder = begin(tmp_path, dataclasses.replace(recipe, method="bp"), digits)
    while not run.epoch_complete:
        run.step()
    folder.save(run)
    with torch.no_grad():
        next(run.model.parameters()).fill_(NAN)
    with pytest.raises(DivergedError, match="epoch 1: the test loss is nan"):
        run_to_its_end(run, folder)
    assert "test loss" in json.loads((tmp_path / "diverged.json").read_text())["reason"]
    assert all(bool(value.isfinite().all()) for value in load(folder.checkpoint_path, run.device)["model"].values())


def test_a_run_that_recovers_is_not_marked_any_more(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    run, folder = begin(tmp_path, recipe, digits)
    folder.mark_diverged(run, "a passing fault")
    assert folder.diverged() == "a passing fault"
    run_to_its_end(run, folder)
    assert folder.diverged() is None
    assert json.loads((tmp_path / "result.json").read_text())["diverged"] is None


@pytest.mark.parametrize("immediate", [False, True])
def test_a_comparison_gives_up_the_method_and_goes_on(
    tmp_path: Path, recipe: Recipe, digits: DataSet, immediate: bool
) -> None:
    pairs = [
        begin(tmp_path / method, dataclasses.replace(recipe, method=method, immediate=immediate), digits)
        for method in ("bp", "adagp")
    ]
    (plain, _), (broken, _) = pairs
    name, _ = next(broken.model.named_parameters())
    break_gradient(broken, name, step=4)
    take_turns(pairs, observer=Observer(), interrupt=Interrupt())
    assert plain.diverged is None
    assert broken.diverged is not None
    assert name in broken.diverged
    assert plain.finished
    assert all(bool(value.isfinite().all()) for value in broken.model.state_dict().values())
