"""Method `local` in real runs: the loss falls, runs resume, and what cannot work is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from adagp import data
from adagp.data import DataSet
from adagp.sources import Local
from adagp.training import Recipe, RecipeError, Run, Settings, compare
from adagp.training.errors import CheckpointError, TrainingError
from adagp.training.planning import check_layers
from tests.training.test_planning import advance


def local(recipe: Recipe, **changes: Any) -> Recipe:
    return recipe.replace(**{"method": "local", **changes})


@pytest.mark.parametrize("changes", [{}, {"parts": 3}, {"head": "predsim"}, {"cuts": "stages.0"}])
def test_a_small_network_learns_in_parts(recipe: Recipe, digits: DataSet, changes: dict[str, Any]) -> None:
    run = Run(local(recipe, model="resnet8", lr=0.1, **changes), digits)
    losses = [run.step().loss or 0.0 for _ in range(30)]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    source = run.gp.sources["local"]
    assert isinstance(source, Local)
    assert len(source.heads) == changes.get("parts", 2) - 1
    assert run.gp.counts().keys() == {"local"}


def test_a_run_resumes_bit_for_bit(recipe: Recipe, digits: DataSet) -> None:
    chosen = local(recipe)
    whole = advance(Run(chosen, digits), 9)
    first, second = advance(Run(chosen, digits), 4), Run(chosen, digits)
    second.load_state_dict(first.state_dict())
    advance(second, 5)
    broken = first.state_dict()
    state = broken["gp"]["sources"]["local"]["optimizer"]["state"]
    state[0]["momentum_buffer"] = torch.zeros(1)
    third = Run(chosen, digits)
    third.load_state_dict(broken)
    with pytest.raises(TrainingError, match="momentum_buffer of shape"):
        third.step()
    broken["gp"]["sources"]["local"]["heads"] = [1]
    with pytest.raises(CheckpointError, match="is not what a run keeps there"):
        third.load_state_dict(broken)
    for one, two in zip(whole.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_next_tokens_are_learned_in_parts(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200, encoding="utf-8")
    (tmp_path / "test.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20, encoding="utf-8")
    text = data.load_any("text-file", tmp_path)
    sizes = {"context": 16, "layers": 2, "width": 16, "heads": 2}
    recipe = Recipe(
        model="gpt",
        data="text-file",
        method="local",
        sizes=sizes,
        vocabulary=300,
        batch_size=16,
        lr=0.02,
        optimizer="adamw",
        threads=1,
    )
    run = Run(recipe, text)
    losses = [run.step().loss or 0.0 for _ in range(30)]
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])


def test_local_is_compared_with_plain_backpropagation(recipe: Recipe, digits: DataSet, tmp_path: Path) -> None:
    found = compare(
        Settings(recipe.replace(epochs=1), ("bp", "local"), (0,)), digits, tmp_path / "c", device=torch.device("cpu")
    )
    assert {outcome.method for outcome in found.methods} == {"bp", "local"}


def test_what_cannot_work_is_refused_before_training(recipe: Recipe, digits: DataSet) -> None:
    with pytest.raises(RecipeError, match=r"the model has no module 'stem'; did you mean"):
        check_layers(local(recipe, cuts="stem"))
    with pytest.raises(RecipeError, match="contradicts cuts"):
        local(recipe, cuts="features.2", parts=3)
    with pytest.raises(RecipeError, match="method local is for classification and next-token prediction"):
        local(recipe, model="transformer", data="multi30k")
    with pytest.raises(RecipeError, match="head"):
        local(recipe, head="mlp")
    del digits
