"""Methods with smaller images, from the recipe to the finished run."""

import copy

import pytest
import torch
from torch import nn

from adagp import coarse
from adagp.data import DataSet
from adagp.schedules import Phase, Plan
from adagp.training import Recipe, RecipeError, Run
from adagp.training.batch_kinds import batch_kind
from adagp.training.comparison.calibrate import kind_counts, plan_shares
from adagp.training.method_options import unused_options
from adagp.training.planning import build_schedule, recipe_outline
from adagp.training.recipe import parse_levels
from adagp.training.tasks.classification import Classification
from adagp.training.tasks.detection import ObjectDetection


def small(recipe: Recipe, method: str, **options: object) -> Recipe:
    return recipe.replace(method=method, model="resnet14", epochs=2, predictor=None, **options)


def finished(run: Run) -> Run:
    while not run.finished:
        if run.epoch_complete:
            run.finish_epoch()
        else:
            run.step()
    return run


@pytest.mark.parametrize("method", ["progressive", "coarse", "growing"])
def test_a_run_has_coarse_and_full_batches_and_resumes(recipe: Recipe, digits: DataSet, method: str) -> None:
    recipe = small(recipe, method)
    sizes: list[int] = []
    run = Run(recipe, digits)
    run.model.stem[0].register_forward_hook(
        lambda module, inputs, output: sizes.append(output.shape[-1]) if module.training else None
    )
    cut = run.total_steps // 2
    for _ in range(cut):
        if run.epoch_complete:
            run.finish_epoch()
        run.step()
    saved = copy.deepcopy(run.state_dict())
    finished(run)
    assert set(sizes) == {4, 8}
    batches = {kind: sum(record.batches[kind] for record in run.records) for kind in ("BP", "WARMUP", "COARSE", "GP")}
    assert batches["COARSE"] > 0
    assert batches["BP"] > 0
    assert batches["GP"] == 0
    resumed = Run(recipe, digits)
    resumed.load_state_dict(saved)
    finished(resumed)
    for one, two in zip(run.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_the_levels_of_the_recipe_are_those_of_the_schedule(recipe: Recipe, digits: DataSet) -> None:
    run = Run(small(recipe, "progressive", levels="0.5:0.25,0.75:0.25,1:0.5"), digits)
    scales = [run.schedule(step).scale for step in range(run.total_steps)]
    quarter = run.total_steps // 4
    assert scales[:quarter] == [0.5] * quarter
    assert scales[-2 * quarter :] == [1.0] * (2 * quarter)
    assert set(scales) == {0.5, 0.75, 1.0}
    counts = kind_counts(run.recipe, run.total_steps, run.steps_per_epoch)
    assert counts == {"COARSE": sum(scale < 1 for scale in scales), "BP": scales.count(1.0)}


def test_every_level_is_timed() -> None:
    recipe = Recipe(model="resnet20", data="cifar10", method="progressive", levels="0.5:0.3,0.75:0.3,1:0.4")
    schedule = build_schedule(recipe, recipe_outline(recipe), 1000, 100)
    found = plan_shares(schedule, 0)
    assert [(plan.scale, round(share, 3)) for plan, share in found] == [(0.5, 0.3), (0.75, 0.3), (1.0, 0.4)]


def test_a_smaller_batch_is_a_kind_of_its_own() -> None:
    assert batch_kind(Plan(Phase.BP, "backprop", scale=0.5)) == "COARSE"
    assert batch_kind(Plan(Phase.BP, "backprop", {"a": "zero"}, scale=0.5)) == "MIXED"


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ("half", r"levels = 'half' is no list of levels: write scale:share pairs"),
        ("0.5:0.6,1:0.3", r"the shares add up to 0.9"),
        ("2:1", r"scale = 2.0: .*at most 1"),
        ("0.5:0.6:1,1:0.4", "write scale:share pairs"),
        ("", "write scale:share pairs"),
    ],
)
def test_levels_that_are_none_are_refused(levels: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(levels=levels)


def test_levels_are_read() -> None:
    assert parse_levels("0.5:0.6,1:0.4") == ((0.5, 0.6), (1.0, 0.4))


def test_a_model_of_one_size_is_refused_before_training(
    recipe: Recipe, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    monkeypatch.setattr(Classification, "build_model", lambda self: fixed)
    with pytest.raises(RecipeError, match=r"scale 0.5: the model cannot take samples of 1x4x4; module .*Linear.*fixed"):
        Run(recipe.replace(method="progressive", model="cnn"), digits)


def test_sentences_cannot_be_made_smaller() -> None:
    with pytest.raises(RecipeError, match="method coarse makes images smaller, and transformer takes none"):
        Recipe(model="transformer", data="multi30k", method="coarse")


def test_options_of_other_methods_are_named() -> None:
    (problem,) = unused_options(["bp"], Recipe(levels="0.5:0.5,1:0.5"))
    assert "levels = 0.5:0.5,1:0.5 would change nothing for bp: it is for progressive and growing" in problem
    (problem,) = unused_options(["bp"], Recipe(scale=0.75))
    assert "it is for coarse" in problem
    assert not unused_options(["bp", "coarse"], Recipe(scale=0.75))


def test_detection_takes_multiples_of_its_stride() -> None:
    assert coarse.size(416, 0.5, ObjectDetection.stride) % 32 == 0
