import itertools
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.data import DataSet
from adagp.training import (
    Interrupted,
    Recipe,
    RecipeError,
    RunFolderError,
    Session,
    Settings,
    compare,
)
from adagp.training.comparison.calibrate import Calibration, expected_seconds
from adagp.training.comparison.compare import run_lengths
from adagp.training.comparison.settings import stored_settings
from adagp.training.run import checkpoint
from adagp.training.run import run as run_module
from adagp.training.run.interrupt import Interrupt
from adagp.training.run.observers import BatchEvent, Observer
from adagp.training.run.run import Run

CPU = torch.device("cpu")
COSTS = Calibration(
    seconds={
        "bp": {"BP": 0.3},
        "adagp": {"BP": 0.33, "GP": 0.11},
        "skip": {"BP": 0.3, "GP": 0.0},
        "short-bp": {"BP": 0.3},
    },
    peak_bytes={},
)


def test_short_bp_gets_the_time_of_adagp() -> None:
    settings = Settings(Recipe(method="bp", epochs=10), ("bp", "adagp", "skip", "short-bp"), (0,))
    lengths = run_lengths(settings, COSTS, 50)
    assert (lengths["bp"], lengths["adagp"], lengths["skip"]) == (None, None, None)
    time = expected_seconds(COSTS, Recipe(method="adagp", epochs=10), 500, 50)
    assert lengths["short-bp"] == int(time / 0.3)
    assert lengths["short-bp"] < 500


def test_short_bp_gets_the_time_of_the_slowest_method_judged() -> None:
    settings = Settings(Recipe(method="bp", epochs=10), ("bp", "progressive", "adagp", "short-bp"), (0,))
    costs = {"bp": {"BP": 0.3}, "short-bp": {"BP": 0.3}, "progressive": {"BP": 0.3, "COARSE": 0.1}}
    for adagp, slowest in (({"BP": 0.31, "GP": 0.2}, "adagp"), ({"BP": 0.1, "GP": 0.1}, "progressive")):
        calibration = Calibration({**costs, "adagp": adagp}, {})
        time = expected_seconds(calibration, settings.recipe.replace(method=slowest), 500, 50)
        assert run_lengths(settings, calibration, 50)["short-bp"] == int(time / 0.3)


def test_budget_gives_everyone_the_same_time_and_drops_short_bp() -> None:
    settings = Settings(Recipe(method="bp"), ("adagp", "skip", "short-bp"), (0,), budget_seconds=60.0)
    assert settings.effective_methods == ("adagp", "skip", "bp")
    lengths = run_lengths(settings, COSTS, 50)
    assert lengths["bp"] == 200
    assert lengths["skip"] is not None
    assert lengths["adagp"] is not None
    assert lengths["skip"] > lengths["adagp"] > 200


class StopAfter(Observer):
    """Asks to stop after so many batches, as a signal would."""

    def __init__(self, interrupt: Interrupt, batches: int) -> None:
        self._interrupt, self._left = interrupt, batches

    def on_batch(self, run: Run, event: BatchEvent) -> None:
        self._left -= 1
        if self._left == 0:
            self._interrupt.signal_number = signal.SIGINT


class Order(Observer):
    """Remembers whose epoch ended when."""

    def __init__(self) -> None:
        self.epochs: list[tuple[str, int]] = []

    def on_epoch(self, run: Run, record: object) -> None:
        self.epochs.append((run.name, len(run.records)))


def test_compare_whole_and_interrupted(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    settings = Settings(recipe.replace(method="bp"), ("bp", "adagp", "skip", "mean", "short-bp"), (0, 1))
    order = Order()
    comparison = compare(settings, digits, tmp_path / "whole", device=CPU, session=Session(order))
    results = {result.method: result for result in comparison.methods}
    assert set(results) == set(settings.methods)
    assert results["bp"].speedup == 1.0
    assert results["bp"].batch_ms.keys() == {"BP"}
    assert results["adagp"].predictor_ms["GP"] > 0
    assert results["skip"].batch_ms["GP"] < results["skip"].batch_ms["BP"] / 5
    assert results["skip"].train_seconds < results["bp"].train_seconds
    assert results["adagp"].peak_bytes["GP"] < results["adagp"].peak_bytes["BP"]
    assert results["adagp"].counts["predicted"] > 0
    assert all(len(result.seeds) == 2 for result in comparison.methods)
    assert "adagp" in comparison.verdict
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["verdict"] == comparison.verdict
    # Interleaved: nobody starts a second epoch before all have ended the first.
    assert {epoch for _, epoch in order.epochs[:10]} == {1}

    # The same comparison, with the same calibration, stopped in the middle of an epoch and resumed.
    folder = tmp_path / "stopped"
    folder.mkdir()
    (folder / "calibration.json").write_bytes((tmp_path / "whole" / "calibration.json").read_bytes())
    interrupt = Interrupt()
    with pytest.raises(Interrupted):
        compare(
            settings, digits, folder, device=CPU, session=Session(StopAfter(interrupt, 40), interrupt), resume=False
        )
    saved = [checkpoint.load(path)["gp"]["progress"]["step_index"] for path in folder.glob("*/checkpoint.pt")]
    assert sum(saved) == 40
    with pytest.raises(RunFolderError, match="--resume"):
        compare(settings, digits, folder, device=CPU)
    other = Settings(settings.recipe, settings.methods, (0, 2))
    with pytest.raises(RunFolderError, match=r"seeds \(0, 2\) against \(0, 1\)"):
        compare(other, digits, folder, device=CPU, resume=True)
    assert stored_settings(folder) == settings
    resumed = compare(settings, digits, folder, device=CPU, resume=True)
    for got, wanted in zip(resumed.methods, comparison.methods, strict=True):
        assert [seed.scores for seed in got.seeds] == [seed.scores for seed in wanted.seeds]
        assert (got.counts, got.batches, got.steps) == (wanted.counts, wanted.batches, wanted.steps)
    # Killed between the last checkpoint of a run and its other files: they are made from it again.
    lost = [folder / "mean-seed1" / name for name in ("result.json", "model.pt", "metrics.json", "quality.json")]
    for path in lost:
        path.unlink()
    compare(settings, digits, folder, device=CPU, resume=True)
    assert all(path.exists() for path in lost)
    for name in ("adagp-seed1", "short-bp-seed0"):
        one = torch.load(tmp_path / "whole" / name / "model.pt", weights_only=True)
        other_weights = torch.load(folder / name / "model.pt", weights_only=True)
        assert all(torch.equal(one[key], other_weights[key]) for key in one)


def test_budget_decides_by_the_measured_costs(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    settings = Settings(recipe.replace(method="bp"), ("bp", "skip"), (0,), budget_seconds=0.5)
    comparison = compare(settings, digits, tmp_path / "run", device=CPU)
    steps = {result.method: result.steps for result in comparison.methods}
    costs = Calibration(**json.loads((tmp_path / "run" / "calibration.json").read_text()))
    for name, count in steps.items():
        one = settings.recipe.replace(method=name)
        assert expected_seconds(costs, one, count, 15) <= 0.5 < expected_seconds(costs, one, count + 1, 15)


def test_budget_is_kept_where_batches_cost_what_was_measured(
    tmp_path: Path, recipe: Recipe, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which every batch takes the same time, so that the machine has no say."""
    ticks = itertools.count()
    monkeypatch.setattr(run_module, "clock", lambda device: lambda: next(ticks) / 64)
    settings = Settings(recipe.replace(method="bp"), ("bp", "skip"), (0,), budget_seconds=0.5)
    comparison = compare(settings, digits, tmp_path / "run", device=CPU)
    for result in comparison.methods:
        assert 0.5 - result.train_seconds / result.steps < result.train_seconds <= 0.5


@pytest.mark.parametrize("changes", [{"include": "no_such_layer"}, {"batch_size": 5000, "train_limit": None}])
def test_a_recipe_that_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, recipe: Recipe, digits: DataSet, changes: dict[str, Any]
) -> None:
    settings = Settings(recipe.replace(method="bp", **changes), ("bp", "adagp"), (0,))
    with pytest.raises(RecipeError):
        compare(settings, digits, tmp_path / "run", device=CPU)
    assert list(tmp_path.iterdir()) == []


def test_threads_predictor_and_reasons_are_reported_as_they_were(
    tmp_path: Path, recipe: Recipe, digits: DataSet
) -> None:
    outside = torch.get_num_threads()
    recipe = recipe.replace(method="bp", threads=outside + 1, predictor="paper", warmup_epochs=0.2, epochs=3)
    settings = Settings(recipe, ("adagp", "adaptive"), (0,))
    comparison = compare(settings, digits, tmp_path / "run", device=CPU)
    assert comparison.environment["threads"] == outside + 1
    assert torch.get_num_threads() == outside
    adagp, adaptive = comparison.methods
    assert "predictor paper instead of trusted" in adagp.summary
    assert adagp.seeds[0].reasons == []
    metrics = json.loads((tmp_path / "run" / "adaptive-seed0" / "metrics.json").read_text())
    assert adaptive.seeds[0].reasons == [reason for epoch in metrics for reason in epoch["reasons"]]


def test_a_method_that_diverges_is_a_result(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    """At this rate plain backpropagation leaves the numbers within an epoch, and skip, which does less, too."""
    settings = Settings(recipe.replace(method="bp", lr=1e9), ("bp", "skip"), (0,))
    comparison = compare(settings, digits, tmp_path / "run", device=CPU)
    assert [result.diverged for result in comparison.methods] == [1, 1]
    assert [result.speedup for result in comparison.methods] == [None, None]
    seed = comparison.methods[0].seeds[0]
    assert seed.diverged is not None
    assert "bp seed 0, epoch 1" in seed.diverged
    again = compare(settings, digits, tmp_path / "run", device=CPU, resume=True)
    assert again.methods[0].seeds[0].diverged == seed.diverged


def test_scipy_is_asked_for_before_several_seeds_are_trained(
    tmp_path: Path, recipe: Recipe, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    settings = Settings(recipe.replace(method="bp"), ("bp", "skip"), (0, 1))
    with pytest.raises(ModuleNotFoundError, match=r"scipy is not installed: pip install 'adagp\[report\]'"):
        compare(settings, digits, tmp_path / "run", device=CPU)
    assert list(tmp_path.iterdir()) == []
