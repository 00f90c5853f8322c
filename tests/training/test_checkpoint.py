import errno
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.data import DataSet
from adagp.training import CheckpointError, Recipe, Run, RunFolder, RunFolderError, checkpoint, train
from adagp.training.interrupt import Interrupt
from adagp.training.observers import Observer


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    state: dict[str, Any] = {"weight": torch.arange(5.0), "step": 3, "inner": [1.5, "x", None]}
    checkpoint.save(path, state)
    loaded = checkpoint.load(path)
    assert torch.equal(loaded.pop("weight"), state.pop("weight"))
    assert loaded == state
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("where", [10, 200, -1])
def test_every_flipped_byte_is_noticed(tmp_path: Path, where: int) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"weight": torch.arange(5.0)})
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged|format|not an adagp checkpoint"):
        checkpoint.load(path)


@pytest.mark.parametrize("length", [0, 5, 90, 400])
def test_a_truncated_file_is_noticed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"weight": torch.arange(5.0)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"damaged|not an adagp checkpoint"):
        checkpoint.load(path)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    torch.save({"weight": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="not an adagp checkpoint"):
        checkpoint.load(path)
    path.write_bytes(b"adagp-checkpoint-9 abc 0\n")
    with pytest.raises(CheckpointError, match="adagp-checkpoint-9"):
        checkpoint.load(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(tmp_path / "absent.pt")


def test_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"step": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left.*previous checkpoint is untouched.*Free"):
        checkpoint.save(path, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load(path) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.slow  # not for its time: where it cannot run, `make test` has nothing to skip
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_really_full_disk(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this system does not let us mount a small disk")
    try:
        path = tmp_path / "checkpoint.pt"
        checkpoint.save(path, {"step": 1})
        with pytest.raises(CheckpointError, match=r"No space left.*previous checkpoint is untouched"):
            checkpoint.save(path, {"weights": torch.zeros(100_000)})
        assert checkpoint.load(path) == {"step": 1}
        assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_run_folder(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    folder = RunFolder(tmp_path / "run")
    run = Run(recipe, digits)
    folder.prepare(run, resume=False)
    assert folder.recipe() == recipe
    with pytest.raises(RunFolderError, match="--resume"):
        folder.prepare(run, resume=False)
    with pytest.raises(RunFolderError, match=r"another recipe.*lr 0\.5 against 0\.02"):
        folder.prepare(Run(recipe.replace(lr=0.5), digits), resume=True)
    assert not folder.restore(run)
    run.step()
    folder.save(run)
    again = Run(recipe, digits)
    assert folder.restore(again)
    assert again.step_index == 1
    stranger = Run(recipe.replace(model="resnet14"), digits)
    with pytest.raises(CheckpointError, match=r"another run.*resnet14"):
        folder.restore(stranger)


def test_a_run_killed_after_its_last_checkpoint_still_gets_its_files(
    tmp_path: Path, recipe: Recipe, digits: DataSet
) -> None:
    recipe = recipe.replace(epochs=1)
    folder = RunFolder(tmp_path / "run")
    run = Run(recipe, digits)
    folder.prepare(run, resume=False)
    whole = train(run, folder, observer=Observer(), interrupt=Interrupt())
    names = ("result.json", "model.pt", "metrics.json", "quality.json")
    before = {name: (folder.path / name).read_bytes() for name in names}
    for name in names:
        (folder.path / name).unlink()
    again = Run(recipe, digits)
    assert folder.restore(again)
    assert train(again, folder, observer=Observer(), interrupt=Interrupt()) == whole
    for name in ("result.json", "metrics.json", "quality.json"):
        assert (folder.path / name).read_bytes() == before[name]
    saved = torch.load(folder.path / "model.pt", weights_only=True)
    assert all(torch.equal(saved[name], value) for name, value in run.model.state_dict().items())


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_environment_is_true_and_names_no_place(
    tmp_path: Path, recipe: Recipe, digits: DataSet, threads: int | None
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.prepare(Run(recipe.replace(threads=threads), digits), resume=False)
    environment = json.loads((folder.path / "environment.json").read_text())
    assert environment["versions"]["torch"] == metadata.version("torch")
    assert environment["threads"] == (threads or torch.get_num_threads())
    text = str(environment)
    assert "/" not in text.replace("/ ", "")
    assert platform.node() not in text


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
    train(run, folder, observer=Look(), interrupt=Interrupt())
    assert (seen, torch.get_num_threads()) == ([outside + 1], outside)
