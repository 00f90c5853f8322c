import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from adagp import models, schedules
from adagp.data import Batches, DataSet
from adagp.data.classification import Split
from adagp.models import registry
from adagp.training import CheckpointError, DivergedError, Recipe, RecipeError, Run, TrainingError, methods
from adagp.training.batch_kinds import BATCH_KINDS
from adagp.training.methods import Planning
from adagp.training.run import learning_rate
from adagp.training.run.folder import summarise


def dropout_model(*, num_classes: int, in_channels: int) -> nn.Module:
    """Draws random numbers in every forward, as the models of the zoo do not."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, 20), nn.Dropout(0.5), nn.Linear(20, num_classes))


class Twice(nn.Module):
    """Runs one layer twice, which immediate updates cannot serve."""

    def __init__(self, *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64 * in_channels, 64 * in_channels), nn.Linear(64 * in_channels, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(self.first(images.flatten(1)).relu()))  # type: ignore[no-any-return]


class Picky(Twice):
    """Refuses its images, as networks do that are made for larger ones."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise ValueError("images: too small, give larger ones")


class Huge(Twice):
    """Asks for more memory than any machine has."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**58) + super().forward(images)


class Viewing(nn.Module):
    """Takes for granted that its images are contiguous, as many networks do."""

    def __init__(self, *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(in_channels, 4, 3, padding=1), nn.Linear(4 * 64, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(images).view(len(images), -1))  # type: ignore[no-any-return]


class Turning(Viewing):
    """Views what no layout of the images makes contiguous."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(images).transpose(2, 3).view(len(images), -1))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _models_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to these tests only: other tests list the models there are."""
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))
    models.register("test-dropout")(dropout_model)
    models.register("test-twice")(Twice)
    models.register("test-huge")(Huge)
    models.register("test-picky")(Picky)
    models.register("test-viewing")(Viewing)
    models.register("test-turning")(Turning)


def finish(run: Run) -> Run:
    while not run.finished:
        while not run.epoch_complete:
            run.step()
        run.finish_epoch()
    return run


def same(one: Run, other: Run) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_bp_equals_a_loop_written_by_hand(recipe: Recipe, digits: DataSet, optimizer: str) -> None:
    recipe = recipe.replace(method="bp", optimizer=optimizer, lr=0.01)
    run = Run(recipe, digits)
    plain = Run(recipe, digits).model
    makers: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=5e-4),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=5e-4),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=5e-4),
    }
    mine = makers[optimizer](plain.parameters())
    batches = Batches(digits.train, 32, seed=0, train=True, mean=digits.mean, std=digits.std, limit=480)
    total = recipe.epochs * len(batches)
    for epoch in range(recipe.epochs):
        for index, (images, labels) in enumerate(batches.epoch(epoch)):
            step = epoch * len(batches) + index
            mine.param_groups[0]["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * step / total))
            mine.zero_grad()
            functional.cross_entropy(plain(images), labels).backward()
            mine.step()
    finish(run)
    for got, wanted in zip(run.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(got, wanted)


def test_methods_start_from_the_same_weights(recipe: Recipe, digits: DataSet) -> None:
    first = Run(recipe.replace(method="bp"), digits)
    for name in methods.names():
        schedule = "layer 1\n* mean\n" if methods.get(name).planning is Planning.TABLE else None
        assert same(first, Run(recipe.replace(method=name, schedule=schedule), digits))
    assert not same(first, Run(recipe.replace(seed=1), digits))


ON_THE_LADDER = [name for name in methods.names() if methods.get(name).planning in (Planning.LADDER, Planning.ADAPTIVE)]


@pytest.mark.parametrize("name", ON_THE_LADDER)
def test_every_method_on_the_ladder_applies_what_it_says(recipe: Recipe, digits: DataSet, name: str) -> None:
    run = finish(Run(recipe.replace(method=name, warmup_epochs=0.5, rung_epochs=0.3), digits))
    source = methods.get(name).source
    assert source is not None
    batches = {kind: sum(record.batches[kind] for record in run.records) for kind in BATCH_KINDS}
    counts = run.records[-1].counts
    layers = len(run.gp.coverage().rows)
    assert sum(batches.values()) == run.total_steps == 30
    assert batches["WARMUP"] > 0
    assert batches["BP"] > 0
    assert counts["backprop"] == (run.total_steps - batches["GP"]) * layers
    if name == "coarse":
        assert batches["COARSE"] > 0
        assert batches["GP"] == 0
    elif name != "adaptive":
        assert batches["GP"] > 0
        assert counts[source] + (counts.get("skip", 0) if source != "skip" else 0) == batches["GP"] * layers
        assert counts[source] > 0


def test_records_add_up(recipe: Recipe, digits: DataSet) -> None:
    run = finish(Run(recipe, digits))
    assert [record.epoch for record in run.records] == [1, 2]
    assert [record.step for record in run.records] == [15, 30]
    assert run.train_seconds == pytest.approx(sum(sum(record.seconds.values()) for record in run.records))
    assert run.records[-1].train_seconds == run.train_seconds
    assert 0 < sum(record.predictor_seconds for record in run.records) < run.train_seconds
    assert sum(map(len, run.batch_seconds.values())) == 30
    assert set(run.records[-1].quality) == {row.layer for row in run.gp.coverage().rows if row.covered}
    evaluation = run.evaluate()
    assert (evaluation.loss, evaluation.metrics) == (run.records[-1].test_loss, run.records[-1].metrics)


def test_a_run_learns(recipe: Recipe, digits: DataSet) -> None:
    run = finish(Run(recipe.replace(method="bp", epochs=6, lr=0.05), digits))
    assert run.scores[-1] > 0.6


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"method": "bp", "model": "test-dropout"}, 7),
        ({"method": "bp", "optimizer": "adamw"}, 22),
        ({"method": "adagp"}, 4),
        ({"method": "adagp"}, 15),
        ({"method": "adagp"}, 22),
        ({"method": "adagp", "lr_schedule": "plateau", "epochs": 14, "lr": 1e-6, "train_limit": 64}, 8),
        ({"method": "adagp-paper"}, 22),
        ({"method": "adaptive"}, 22),
        ({"method": "mean"}, 22),
        ({"method": "last"}, 11),
    ],
)
def test_state_continues_bit_for_bit(recipe: Recipe, digits: DataSet, changes: dict[str, Any], at: int) -> None:
    recipe = recipe.replace(**({"warmup_epochs": 0.2, "rung_epochs": 0.3} | changes))
    whole = finish(Run(recipe, digits))
    first = Run(recipe, digits)
    while first.step_index < at:
        if first.epoch_complete:
            first.finish_epoch()
        first.step()
    second = Run(recipe, digits)
    second.load_state_dict(first.state_dict())
    finish(second)
    assert same(whole, second)
    for got, wanted in zip(second.records, whole.records, strict=True):
        assert (got.train_loss, got.test_loss, got.metrics, got.lr, got.batches, got.counts, got.quality) == (
            (
                wanted.train_loss,
                wanted.test_loss,
                wanted.metrics,
                wanted.lr,
                wanted.batches,
                wanted.counts,
                wanted.quality,
            )
        )


def test_runs_in_turns_do_not_disturb_each_other(recipe: Recipe, digits: DataSet) -> None:
    recipe = recipe.replace(model="test-dropout")
    alone = finish(Run(recipe, digits))
    one, other = Run(recipe, digits), Run(recipe.replace(seed=5, method="adagp-paper"), digits)
    while not one.finished:
        one.finish_epoch() if one.epoch_complete else one.step()
        if not other.finished:
            other.finish_epoch() if other.epoch_complete else other.step()
    assert same(alone, one)


def test_randomness_stays_inside_the_run(recipe: Recipe, digits: DataSet) -> None:
    before = torch.get_rng_state()
    run = Run(recipe.replace(model="test-dropout"), digits)
    run.step()
    run.evaluate()
    assert torch.equal(torch.get_rng_state(), before)


def test_warm_up_trains_exactly_as_bp(recipe: Recipe, digits: DataSet) -> None:
    """Also where the model draws random numbers: the predictor's own must not shift them."""
    recipe = recipe.replace(model="test-dropout", epochs=1)
    assert same(finish(Run(recipe.replace(method="bp"), digits)), finish(Run(recipe.replace(warmup_epochs=1), digits)))


def test_plateau_lowers_the_rate(recipe: Recipe, digits: DataSet) -> None:
    recipe = recipe.replace(method="bp", lr_schedule="plateau", epochs=14, lr=1e-6, train_limit=64)
    rates = [record.lr for record in finish(Run(recipe, digits)).records]
    assert rates[0] == 1e-6
    assert rates[-1] == pytest.approx(1e-7)


def test_state_of_another_recipe_is_refused(recipe: Recipe, digits: DataSet) -> None:
    state = Run(recipe, digits).state_dict()
    with pytest.raises(CheckpointError, match=r"another run.*seed 1 against 0"):
        Run(recipe.replace(seed=1), digits).load_state_dict(state)
    state = Run(recipe, digits).state_dict()
    del state["model"]["features.0.weight"]
    with pytest.raises(CheckpointError, match=r"features\.0\.weight"):
        Run(recipe, digits).load_state_dict(state)


def test_divergence_names_place_and_remedy(recipe: Recipe, digits: DataSet) -> None:
    run = Run(recipe.replace(method="bp", lr=1e9), digits)
    with pytest.raises(DivergedError, match=r"bp seed 0, epoch 1, batch \d+.*[Ll]ower"):
        finish(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "test-twice", "immediate": True, "warmup_epochs": 0}, r"adagp seed 0, epoch 1, batch \d+: .*first"),
        ({"model": "test-huge", "method": "bp"}, r"bp seed 0, epoch 1, batch 1: .*memory.*lower batch_size"),
        ({"model": "test-picky", "method": "bp"}, r"bp seed 0, epoch 1, batch 1: images: too small"),
        (
            {"model": "test-viewing", "method": "bp"},
            r"batch 1: view size .*reshape.*; or set channels_last=false",
        ),
    ],
)
def test_what_stops_the_work_is_one_line_with_its_place(
    recipe: Recipe, digits: DataSet, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingError, match=message) as caught:
        finish(Run(recipe.replace(**changes), digits))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError | ValueError)


def test_the_other_layout_is_named_only_where_it_helps(recipe: Recipe, digits: DataSet) -> None:
    contiguous = recipe.replace(method="bp", epochs=1, channels_last=False)
    finish(Run(contiguous.replace(model="test-viewing"), digits))
    with pytest.raises(TrainingError, match="view size") as caught:
        finish(Run(contiguous.replace(model="test-turning"), digits))
    assert "channels_last" not in str(caught.value)


def in_colour(digits: DataSet) -> DataSet:
    """Three channels: a single one lies in memory the same way in both layouts."""

    def coloured(split: Split) -> Split:
        assert isinstance(split.images, torch.Tensor)
        return Split(split.images.repeat(1, 3, 1, 1), split.labels)

    return dataclasses.replace(
        digits,
        train=coloured(digits.train),
        test=coloured(digits.test),
        channels=3,
        mean=3 * digits.mean,
        std=3 * digits.std,
    )


def test_reasons_of_the_adaptive_schedule_are_recorded_once(recipe: Recipe, digits: DataSet) -> None:
    recipe = recipe.replace(method="adaptive", epochs=4, warmup_epochs=0.2)
    run = finish(Run(recipe, digits))
    assert isinstance(run.schedule, schedules.Adaptive)
    assert run.schedule.explain() != []
    assert [reason for record in run.records for reason in record.reasons] == run.schedule.explain()
    assert summarise(run)["reasons"] == run.schedule.explain()
    assert sum(bool(record.reasons) for record in finish(Run(recipe.replace(method="adagp"), digits)).records) == 0


def test_regex_that_matches_nothing(recipe: Recipe, digits: DataSet) -> None:
    with pytest.raises(RecipeError, match="no_such_layer"):
        Run(recipe.replace(include="no_such_layer"), digits)


def test_batch_larger_than_the_data(recipe: Recipe, digits: DataSet) -> None:
    with pytest.raises(RecipeError, match=r"batch_size = 5000.*1437 training images"):
        Run(recipe.replace(batch_size=5000, train_limit=None), digits)


def test_steps_end_inside_an_epoch(recipe: Recipe, digits: DataSet) -> None:
    run = finish(Run(recipe.replace(method="bp", steps=20), digits))
    assert [record.step for record in run.records] == [15, 20]
    assert run.records[-1].lr == pytest.approx(0.02 * learning_rate.factor("cosine", 19 / 20))


def test_images_and_weights_are_channels_last_unless_the_recipe_says_otherwise(recipe: Recipe, digits: DataSet) -> None:
    layouts = {torch.channels_last: recipe, torch.contiguous_format: recipe.replace(channels_last=False)}
    for layout, chosen in layouts.items():
        run = Run(chosen.replace(epochs=1), in_colour(digits))
        shown: list[torch.Tensor] = []
        run.model.get_submodule("features.0").register_forward_hook(
            lambda _, inputs, output, to=shown: to.extend((inputs[0], output))
        )
        finish(run)
        assert run.model.get_parameter("features.0.weight").is_contiguous(memory_format=layout)
        assert all(tensor.is_contiguous(memory_format=layout) for tensor in shown)


def test_a_run_follows_its_warm_up(recipe: Recipe, digits: DataSet) -> None:
    run = Run(recipe.replace(method="bp", lr_warmup=0.5, lr_schedule="constant"), digits)
    rates = []
    while not run.epoch_complete:
        run.step()
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.02 * step / 15 for step in range(15)])


def test_gp_holds_less_than_bp(recipe: Recipe, digits: DataSet) -> None:
    run = Run(recipe.replace(batch_size=128), digits, schedule=None)
    peaks: dict[str, int] = {}
    while "GP" not in peaks:
        phase = run.gp.next_plan().phase.value
        peaks[phase] = run.peak_bytes()
    assert 0 < peaks["GP"] < peaks["WARMUP"]
