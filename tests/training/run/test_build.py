"""Runs that start from the weights of another."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adagp.data import DataSet
from adagp.training import Recipe, RecipeError, Run


def saved(path: Path, run: Run) -> str:
    torch.save(run.model.state_dict(), path)
    return str(path)


def test_a_run_starts_from_the_weights_of_another(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    other = Run(recipe.replace(seed=5), digits)
    started = Run(recipe.replace(weights=saved(tmp_path / "model.pt", other)), digits)
    for name, value in started.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])


def test_a_last_layer_for_other_classes_stays_random(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    more = replace(digits, num_classes=12)
    other = Run(recipe.replace(seed=5), more)
    started = Run(recipe.replace(weights=saved(tmp_path / "model.pt", other)), digits)
    fresh = Run(recipe, digits).model.state_dict()
    kept = [name for name, value in started.model.state_dict().items() if not torch.equal(value, fresh[name])]
    last = [name for name in fresh if fresh[name].shape != other.model.state_dict()[name].shape]
    assert kept
    assert last
    assert not set(last) & set(kept)


def test_files_without_fitting_weights_are_refused(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    with pytest.raises(RecipeError, match=r"weights = '.*absent.pt' cannot be read"):
        Run(recipe.replace(weights=str(tmp_path / "absent.pt")), digits)
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(RecipeError, match=r"holds no weights: give the model.pt of a run folder"):
        Run(recipe.replace(weights=str(tmp_path / "text.pt")), digits)
    torch.save({"elsewhere": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(RecipeError, match="fit no layer of this network"):
        Run(recipe.replace(weights=str(tmp_path / "other.pt")), digits)


def test_the_fingerprint_of_a_run_from_random_weights_is_the_one_before_the_field_existed(recipe: Recipe) -> None:
    values = {name: value for name, value in recipe.to_dict().items() if name != "weights"}
    assert recipe.digest() == hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
    assert recipe.replace(weights="model.pt").digest() != recipe.digest()
