from pathlib import Path

import pytest
import torch

from adagp.data import DataSet
from adagp.training import CheckpointError, Recipe, Run, RunFolder, RunFolderError, train


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
    whole = train(run, folder)
    names = ("result.json", "model.pt", "metrics.json", "quality.json")
    before = {name: (folder.path / name).read_bytes() for name in names}
    for name in names:
        (folder.path / name).unlink()
    again = Run(recipe, digits)
    assert folder.restore(again)
    assert train(again, folder) == whole
    for name in ("result.json", "metrics.json", "quality.json"):
        assert (folder.path / name).read_bytes() == before[name]
    saved = torch.load(folder.path / "model.pt", weights_only=True)
    assert all(torch.equal(saved[name], value) for name, value in run.model.state_dict().items())
