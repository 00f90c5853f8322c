"""Training a run to its end, with the recipe's threads; one that diverges stops and keeps its last good checkpoint."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from adagp.data import DataSet
from adagp.training import DivergedError, Recipe, Run, RunFolder, Session, train
from adagp.training.run.checkpoint import load
from adagp.training.run.observers import Observer
from tests.training.running import NAN, begin, break_gradient


def run_to_its_end(run: Run, folder: RunFolder) -> None:
    train(run, folder, Session(checkpoint_seconds=0))


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


def test_threads_are_the_recipes_while_training_and_nobody_elses_after(
    tmp_path: Path, recipe: Recipe, digits: DataSet
) -> None:
    outside = torch.get_num_threads()
    seen: list[int] = []

    class Look(Observer):
        def on_epoch(self, run: Run, record: object) -> None:
            seen.append(torch.get_num_threads())

    recipe = recipe.replace(epochs=1, threads=outside + 1)
    folder = RunFolder(tmp_path / "run")
    run = Run(recipe, digits)
    folder.prepare(run, resume=False)
    assert torch.get_num_threads() == outside
    train(run, folder, Session(Look()))
    assert (seen, torch.get_num_threads()) == ([outside + 1], outside)
