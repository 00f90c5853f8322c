import json
import signal
from pathlib import Path

import pytest
import torch

from adagp.data import DataSet
from adagp.training import Interrupted, Recipe, RecipeError, RunFolderError, Settings, checkpoint, compare
from adagp.training.calibrate import Calibration, expected_seconds, phase_counts, steps_within
from adagp.training.compare import run_lengths, stored_settings
from adagp.training.interrupt import Interrupt
from adagp.training.loop import Run
from adagp.training.observers import BatchEvent, Observer
from adagp.training.verdict import Outcome, noise, verdict

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


def test_phase_counts_follow_the_ladder() -> None:
    recipe = Recipe(method="adagp", warmup_epochs=10, rung_epochs=4)
    # By hand: 10 epochs warm-up; 4 each at 4:1, 3:1 and 2:1; the other 68 at 1:1, of 120 batches each.
    gp = 4 * 120 * 4 // 5 + 4 * 120 * 3 // 4 + 4 * 120 * 2 // 3 + 68 * 120 // 2
    assert phase_counts(recipe, 90 * 120, 120) == {"BP": 90 * 120 - gp, "GP": gp}
    assert phase_counts(recipe.replace(method="bp"), 500, 120) == {"BP": 500, "GP": 0}


def test_steps_within_is_the_longest_run_that_fits() -> None:
    for method in ("bp", "adagp", "skip"):
        recipe = Recipe(method=method)
        steps = steps_within(COSTS, recipe, 60.0, 50)
        assert expected_seconds(COSTS, recipe, steps, 50) <= 60.0
        assert expected_seconds(COSTS, recipe, steps + 1, 50) > 60.0
    assert steps_within(COSTS, Recipe(method="bp"), 60.0, 50) == 200
    assert steps_within(COSTS, Recipe(method="bp"), 0.01, 50) == 1


def test_short_bp_gets_the_time_of_adagp() -> None:
    settings = Settings(Recipe(method="bp", epochs=10), ("bp", "adagp", "skip", "short-bp"), (0,))
    lengths = run_lengths(settings, COSTS, 50)
    assert (lengths["bp"], lengths["adagp"], lengths["skip"]) == (None, None, None)
    time = expected_seconds(COSTS, Recipe(method="adagp", epochs=10), 500, 50)
    assert lengths["short-bp"] == int(time / 0.3)
    assert lengths["short-bp"] < 500


def test_budget_gives_everyone_the_same_time_and_drops_short_bp() -> None:
    settings = Settings(Recipe(method="bp"), ("adagp", "skip", "short-bp"), (0,), budget_seconds=60.0)
    assert settings.effective_methods == ("adagp", "skip", "bp")
    lengths = run_lengths(settings, COSTS, 50)
    assert lengths["bp"] == 200
    assert lengths["skip"] is not None
    assert lengths["adagp"] is not None
    assert lengths["skip"] > lengths["adagp"] > 200


@pytest.mark.parametrize(
    ("names", "seeds", "budget", "message"),
    [
        (("bp", "nothing"), (0,), None, "unknown methods nothing"),
        ((), (0,), None, "at least one"),
        (("bp", "bp"), (0,), None, "each method once"),
        (("bp",), (), None, "seeds"),
        (("bp",), (1, 1), None, "each seed once"),
        (("bp", "short-bp"), (0,), None, "time of ADA-GP"),
        (("bp",), (0,), -3.0, "budget"),
    ],
)
def test_unusable_settings(names: tuple[str, ...], seeds: tuple[int, ...], budget: float | None, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Settings(Recipe(method="bp"), names, seeds, budget)


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
    comparison = compare(settings, digits, tmp_path / "whole", device=CPU, observer=order, interrupt=Interrupt())
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
            settings, digits, folder, device=CPU, observer=StopAfter(interrupt, 40), interrupt=interrupt, resume=False
        )
    saved = [checkpoint.load(path)["gp"]["step_index"] for path in folder.glob("*/checkpoint.pt")]
    assert sum(saved) == 40
    with pytest.raises(RunFolderError, match="--resume"):
        compare(settings, digits, folder, device=CPU, observer=Observer(), interrupt=Interrupt())
    other = Settings(settings.recipe, settings.methods, (0, 2))
    with pytest.raises(RunFolderError, match="different: seeds"):
        compare(other, digits, folder, device=CPU, observer=Observer(), interrupt=Interrupt(), resume=True)
    assert stored_settings(folder) == settings
    resumed = compare(settings, digits, folder, device=CPU, observer=Observer(), interrupt=Interrupt(), resume=True)
    for got, wanted in zip(resumed.methods, comparison.methods, strict=True):
        assert [seed.accuracies for seed in got.seeds] == [seed.accuracies for seed in wanted.seeds]
        assert (got.counts, got.phases, got.steps) == (wanted.counts, wanted.phases, wanted.steps)
    for name in ("adagp-seed1", "short-bp-seed0"):
        one = torch.load(tmp_path / "whole" / name / "model.pt", weights_only=True)
        other_weights = torch.load(folder / name / "model.pt", weights_only=True)
        assert all(torch.equal(one[key], other_weights[key]) for key in one)


def test_budget_is_kept(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    settings = Settings(recipe.replace(method="bp"), ("bp", "skip"), (0,), budget_seconds=0.5)
    comparison = compare(settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt())
    steps = {result.method: result.steps for result in comparison.methods}
    assert steps["skip"] > steps["bp"]
    for result in comparison.methods:
        assert 0.1 < result.train_seconds < 2.5  # a shared machine may be several times slower or faster meanwhile


def test_a_method_that_diverges_is_a_result(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    """At this rate plain backpropagation leaves the numbers within an epoch, and skip, which does less, too."""
    settings = Settings(recipe.replace(method="bp", lr=1e9), ("bp", "skip"), (0,))
    comparison = compare(settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt())
    assert [result.diverged for result in comparison.methods] == [1, 1]
    seed = comparison.methods[0].seeds[0]
    assert seed.diverged is not None
    assert "bp seed 0, epoch 1" in seed.diverged
    again = compare(
        settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt(), resume=True
    )
    assert again.methods[0].seeds[0].diverged == seed.diverged


def outcome(method: str, *accuracies: float, seconds: float = 10.0) -> Outcome:
    return Outcome(method, accuracies, seconds, 10_000)


def test_noise_is_the_larger_of_spread_and_resolution() -> None:
    assert noise(outcome("a", 0.5), outcome("b", 0.5, 0.6)) is None
    assert noise(outcome("a", 0.5, 0.5), outcome("b", 0.5, 0.5)) == pytest.approx(0.005)
    assert noise(outcome("a", 0.4, 0.6), outcome("b", 0.4, 0.6)) == pytest.approx(0.02**0.5)


@pytest.mark.parametrize(
    ("skip", "short", "parts"),
    [
        ((0.90, 0.90), (0.90, 0.90), ["not better than skip or short-bp", "no measurable difference"]),
        ((0.80, 0.80), (0.80, 0.80), ["better than skip and short-bp", "paid"]),
        ((0.80, 0.80), (0.95, 0.95), ["not better than short-bp", "better than skip"]),
        ((0.80,), (0.80,), ["one seed proves nothing"]),
        ((0.95,), (0.80,), ["not better than skip"]),
    ],
)
def test_verdict(skip: tuple[float, ...], short: tuple[float, ...], parts: list[str]) -> None:
    mine = (0.90, 0.90)[: len(skip)]
    text = verdict(
        [
            outcome("bp", *mine, seconds=20.0),
            outcome("adagp", *mine, seconds=15.0),
            outcome("skip", *skip),
            outcome("short-bp", *short),
        ]
    )
    assert "0.75 x the time of bp" in text
    for part in parts:
        assert part in text
    if len(parts) == 2 and parts[1] == "paid":
        assert "not better" not in text


def test_verdict_under_a_budget_takes_bp_as_the_rival() -> None:
    outcomes = [outcome("bp", 0.95, 0.95), outcome("adagp", 0.90, 0.90), outcome("skip", 0.8, 0.8)]
    assert "not better than bp" in verdict(outcomes, equal_time=True)
    assert "was better than skip here" in verdict(outcomes)


def test_verdict_without_adagp() -> None:
    assert "nothing to judge" in verdict([outcome("bp", 0.9, 0.9)])
