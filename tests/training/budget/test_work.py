"""Small real comparisons: interrupted, killed, added to, and shared by two processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from adagp import data
from adagp.training import Recipe, RecipeError, RunFolder, RunFolderError, Session
from adagp.training.budget.options import BudgetOptions
from adagp.training.budget.reference import stored_reference
from adagp.training.budget.result import read_result
from adagp.training.budget.settings import BudgetSettings, stored
from adagp.training.budget.work import work
from adagp.training.run.observers import Observer
from adagp.training.run.records import EpochRecord
from adagp.training.run.run import Run

CPU = torch.device("cpu")
OPTIONS = BudgetOptions(rates=(0.02, 0.05), batch_sizes=(32,), shares=(0.5, 1.0), validation=200)
WORDS = (
    *("--protocol", "budget", "--model", "cnn", "--data", "digits", "--epochs", "2", "--batch-size", "32"),
    *("--train-limit", "480", "--test-limit", "100", "--lr", "0.02", "--rates", "0.02,0.05", "--batches", "32"),
    *("--shares", "0.5,1", "--validation", "200", "--set", "threads=1"),
)


@pytest.fixture
def plain(recipe: Recipe) -> Recipe:
    return recipe.replace(method="bp", threads=1)


class Finished(Observer):
    """Counts the last epochs of runs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_epoch(self, run: Run, record: EpochRecord) -> None:
        if run.finished:
            self.names.append(run.name)


def compared(settings: BudgetSettings, path: Path, *, resume: bool = False) -> list[str]:
    """Work on a comparison, and say which runs that took."""
    seen = Finished()
    work(settings, path, data.load, device=CPU, session=Session(seen), resume=resume)
    return seen.names


def test_parts_are_added_and_the_rest_is_not_run_again(tmp_path: Path, plain: Recipe) -> None:
    path = tmp_path / "board"
    first = compared(BudgetSettings.of(plain, ("bp", "skip"), (0,), OPTIONS), path)
    assert Counter(name.rpartition("-")[0] for name in first) == {
        "bp-batch32": 2,
        "skip-batch32": 2,
        "bp-share0.5": 1,
        "bp-share1": 1,
        "skip-share0.5": 1,
        "skip-share1": 1,
    }
    before, target = stored_reference(path), (path / "target.json").read_text()
    assert before is not None
    # A method later: its own runs only, at costs counted in the first measurement's seconds.
    second = compared(BudgetSettings.of(plain, ("mean",), (0,), OPTIONS), path, resume=True)
    assert len(second) == 4
    assert all(name.startswith("mean-") for name in second)
    after = stored_reference(path)
    assert after is not None
    assert {label: cost for label, cost in after.costs.items() if "mean" not in label} == before.costs
    assert after.budget_seconds == before.budget_seconds
    # A seed later: the learning rates and the target stay.
    third = compared(BudgetSettings.of(plain, ("bp",), (0, 1), OPTIONS), path, resume=True)
    assert sorted(third) == sorted(
        f"{name}-share{share}-seed1" for name in ("bp", "skip", "mean") for share in ("0.5", "1")
    )
    assert (path / "target.json").read_text() == target
    assert compared(stored(path), path, resume=True) == []
    result = read_result(path)
    assert result.is_complete
    assert {outcome.method for outcome in result.methods} == {"bp", "skip", "mean"}
    for outcome in result.methods:
        for run in outcome.runs:  # what was spent is the share, to within a batch and the ladder's parts
            assert run.seconds <= run.share * result.budget_seconds * (1 + 1e-9)
            assert run.seconds > 0.8 * run.share * result.budget_seconds
        assert [run.seed for run in outcome.runs if run.share == 1] == [0, 1]
    with pytest.raises(RunFolderError, match="--resume"):
        compared(stored(path), path)
    other = BudgetSettings.of(plain.replace(epochs=3), ("bp",), (0,), OPTIONS)
    with pytest.raises(RunFolderError, match=r"epochs 2 against 3.*only methods and seeds can be added"):
        compared(other, path, resume=True)


def test_all_runs_start_from_weights_that_are_trained_once(tmp_path: Path, plain: Recipe) -> None:
    pretrained = BudgetOptions(
        rates=(0.02,), batch_sizes=(32,), shares=(1.0,), validation=200, pretrain=(("epochs", 1), ("lr", 0.05))
    )
    path = tmp_path / "tuned"
    trained = compared(BudgetSettings.of(plain.replace(epochs=1), ("bp",), (0,), pretrained), path)
    assert trained == ["pretraining", "bp-batch32-lr0.02", "bp-share1-seed0"]
    assert RunFolder(path / "pretrained").recipe() == plain.replace(epochs=1, lr=0.05)
    recipe = RunFolder(path / "runs" / "bp-share1-seed0").recipe()
    assert recipe.weights == str(path / "pretrained" / "model.pt")
    # The second part of one training is not the first part of another.
    first = json.loads((path / "runs" / "bp-share1-seed0" / "metrics.json").read_text())[0]
    alone = json.loads((path / "pretrained" / "metrics.json").read_text())[0]
    assert first["train_loss"] < alone["train_loss"]
    again = compared(BudgetSettings.of(plain.replace(epochs=1), ("bp", "skip"), (0,), pretrained), path, resume=True)
    assert again == ["skip-batch32-lr0.02", "skip-share1-seed0"]


def test_a_recipe_that_does_not_fit_leaves_nothing_behind(tmp_path: Path, plain: Recipe) -> None:
    with pytest.raises(RecipeError, match="cannot be set aside"):
        compared(BudgetSettings.of(plain, ("bp",), (0,), BudgetOptions(validation=10_000)), tmp_path / "run")
    with pytest.raises(RecipeError, match="no layer"):
        compared(BudgetSettings.of(plain.replace(include="absent"), ("bp",), (0,), OPTIONS), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RecipeError, match="does not decay"):
        BudgetSettings.of(plain.replace(lr_schedule="constant"), ("bp",), (0,), OPTIONS)


def start(path: Path, *more: str) -> subprocess.Popen[str]:
    """Start a process on a comparison."""
    command = [sys.executable, "-m", "adagp", "compare", *WORDS, *more, "--out", str(path), "--resume"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)


def finished_runs(path: Path) -> dict[str, list[float]]:
    """The final weights of every run, as numbers."""
    weights = {str(file.parent.relative_to(path)): file for file in path.glob("*/*/model.pt")}
    return {
        name: [float(value.double().sum()) for value in torch.load(file, weights_only=True).values()]
        for name, file in weights.items()
    }


def test_two_processes_share_the_work_and_one_is_killed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    methods = ("--methods", "bp,skip", "--seeds", "0,1", "--checkpoint-seconds", "0.05")
    killed, other = start(shared, *methods), start(shared, *methods)
    deadline = time.monotonic() + 240
    # Killed, most likely in the middle of a run: its lock ends with it, and the other goes on from its checkpoint.
    while not list(shared.glob("runs/*/checkpoint.pt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    said = [other.communicate(timeout=240), killed.communicate(timeout=60)]
    assert other.returncode == 0, said
    # An epoch is saved before it is announced: none was trained twice.
    lines = [line.split() for _, errors in said for line in errors.splitlines() if " epoch " in line]
    epochs = Counter((words[0], words[2]) for words in lines)
    assert {name for name, _ in epochs} <= {name.partition("/")[2] for name in finished_runs(shared)}
    assert max(epochs.values()) == 1
    # Alone and undisturbed, at the same costs, it gives the same weights.
    alone = tmp_path / "alone"
    (alone / "reference").mkdir(parents=True)
    (alone / "reference" / "costs.json").write_bytes((shared / "reference" / "costs.json").read_bytes())
    compared(stored(shared), alone)
    assert finished_runs(alone) == finished_runs(shared)
    assert len(finished_runs(alone)) == 4 + 2 * 2 * 2
