"""Methods with smaller images, from the recipe to the finished run."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adagp import coarse, data
from adagp.data import DataSet
from adagp.schedules import Phase, Plan, Probe, Schedule
from adagp.training import Recipe, RecipeError, Run
from adagp.training.batch_kinds import batch_kind
from adagp.training.comparison.calibrate import kind_counts, plan_shares
from adagp.training.method_options import unused_options
from adagp.training.planning import build_schedule, recipe_outline
from adagp.training.recipe import parse_levels
from adagp.training.run.world import World
from adagp.training.tasks.classification import Classification
from adagp.training.tasks.detection import ObjectDetection
from tests.data.making import picture, write_files
from tests.ranks import on_ranks


def small(recipe: Recipe, method: str, **options: object) -> Recipe:
    return recipe.replace(method=method, model="resnet14", epochs=2, predictor=None, **options)


def photographs(folder: Path) -> DataSet:
    """Two classes in files, six training images and one test image each."""
    files = {
        f"{split}/{label}/{number}.jpg": picture(40 + number, 40, 7 * number + place, "JPEG")
        for split, count in (("train", 6), ("val", 1))
        for place, label in enumerate(("a", "b"))
        for number in range(count)
    }
    write_files(folder, files)
    return data.load("image-folder", folder)


class Impulsive(Schedule):
    """Grows at every probe, which nobody can foresee two batches ahead."""

    scales = frozenset({0.5, 0.75, 1.0})
    wants_probes = True

    def __init__(self) -> None:
        self.level = 0

    def __call__(self, step: int) -> Plan:
        scale = 1.0 if self.probe_scales(step) else (0.5, 0.75, 1.0)[self.level]
        return Plan(Phase.BP, "backprop", scale=scale)

    def probe_scales(self, step: int) -> tuple[float, ...]:
        return (0.5, 0.75) if step % 4 == 1 else ()

    def observe_probe(self, step: int, probe: Probe) -> None:
        self.level = min(self.level + 1, 2)

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level}

    def load_state_dict(self, state: Any) -> None:
        self.level = state["level"]


def in_files(method: str) -> tuple[Recipe, Schedule | None]:
    recipe = Recipe(model="resnet14", data="image-folder", batch_size=2, image_size=16, epochs=2, method="growing")
    if method == "impulsive":
        return recipe.replace(predictor=None), Impulsive()
    return recipe.replace(predictor=None, method=method, levels="0.5:0.3,0.75:0.3,1:0.4"), None


def seen(run: Run) -> list[torch.Tensor]:
    """Every training batch that the network is given from now on."""
    shown: list[torch.Tensor] = []
    run.model.stem[0].register_forward_hook(
        lambda module, inputs, output: shown.append(inputs[0].clone()) if module.training else None
    )
    return shown


@pytest.mark.parametrize("method", ["progressive", "coarse", "impulsive"])
def test_files_are_read_at_the_scale_of_the_plan_and_runs_on_them_resume(tmp_path: Path, method: str) -> None:
    dataset = photographs(tmp_path)
    recipe, schedule = in_files(method)
    run = Run(recipe, dataset, schedule=schedule)
    shown, saved = seen(run), []
    while not run.finished:
        if run.epoch_complete:
            run.finish_epoch()
            continue
        saved.append(copy.deepcopy(run.state_dict()))
        scale, count = run.gp.next_plan().scale, len(shown)
        epoch, index = divmod(run.step_index, run.steps_per_epoch)
        run.step()
        (images, _), *_ = run.task.epoch(epoch, index, lambda batch: scale)  # noqa: B023
        assert images.shape[-1] == coarse.size(16, scale)
        assert torch.equal(shown[count], images)
        for probe, smaller in zip(shown[count + 1 :], (0.5, 0.75), strict=False):
            assert torch.equal(probe, coarse.images(images, smaller))
    assert {images.shape[-1] for images in shown} == {8, 16} | ({12} if method != "coarse" else set())
    for state in saved[2::5]:
        resumed = Run(recipe, dataset, schedule=in_files(method)[1])
        resumed.load_state_dict(state)
        finished(resumed)
        for one, two in zip(run.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
            assert torch.equal(one, two)


def train_on_files(rank: int, count: int, folder: Path, method: str) -> list[Any]:
    recipe, schedule = in_files(method)
    run = Run(recipe, data.load("image-folder", folder), schedule=schedule, world=World(rank, count))
    sizes = seen(run)
    finished(run)
    return [[images.shape[-1] for images in sizes], [part.detach().numpy() for part in run.model.parameters()]]


@pytest.mark.parametrize("method", ["progressive", "impulsive"])
def test_ranks_read_files_at_the_same_scales(tmp_path: Path, method: str) -> None:
    photographs(tmp_path)
    one, two = on_ranks(2, train_on_files, tmp_path, method)
    assert one[0] == two[0]
    assert set(one[0]) == {8, 12, 16}
    assert all((a == b).all() for a, b in zip(one[1], two[1], strict=True))


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
        ("half", r"^levels = 'half': write scale:share pairs"),
        ("0.5:0.6,1:0.3", r"^levels = '0.5:0.6,1:0.3': the shares add up to 0.9"),
        ("1:0.4,0.5:0.6", r"^levels = '1:0.4,0.5:0.6': end with scale 0.5"),
        ("0.5:nan,1:0.6", r"share of the steps must be positive"),
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
    with pytest.raises(
        RecipeError, match=r"scale 0.5: the model cannot take samples of 1x4x4; module .*Linear.*AdaptiveAvgPool2d"
    ):
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
