import itertools
import json
import random
import signal
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
    Settings,
    checkpoint,
    compare,
    loop,
    methods,
)
from adagp.training.calibrate import Calibration, expected_seconds, phase_counts, steps_within
from adagp.training.comparison import run_lengths, stored_settings
from adagp.training.interrupt import Interrupt
from adagp.training.loop import Run
from adagp.training.observers import BatchEvent, Observer
from adagp.training.statistics import t_quantile
from adagp.training.tasks import Metric
from adagp.training.verdict import Outcome, least_difference, speedup, verdict

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
    assert phase_counts(recipe.replace(method="bp"), 500, 120) == {"BP": 500}


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
        (("bp", "short-bp"), (0,), None, "time of another method"),
        (("bp",), (True,), None, "whole numbers"),
        (("bp",), (0,), -3.0, "budget"),
    ],
)
def test_unusable_settings(names: tuple[str, ...], seeds: tuple[int, ...], budget: float | None, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Settings(Recipe(method="bp"), names, seeds, budget)


@pytest.mark.parametrize(
    ("changes", "names", "budget", "message"),
    [
        ({"steps": 20}, ("bp", "skip"), 3.0, "steps = 20 and a budget.*give one"),
        ({"predictor": "trusted"}, ("bp", "adagp", "adagp-paper"), None, "adagp-paper something else.*leave"),
        ({"predictor": "paper"}, ("bp", "skip"), None, "change nothing.*adagp, adaptive, prefix"),
    ],
)
def test_a_recipe_that_would_be_ignored_or_mislabelled(
    changes: dict[str, Any], names: tuple[str, ...], budget: float | None, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        Settings(Recipe(method="bp").replace(**changes), names, (0,), budget)


@pytest.mark.parametrize(
    ("lr_schedule", "said", "not_said"),
    [
        ("cosine", "decayed to zero within it", "constant"),
        ("step", "decayed in full within it", "constant"),
        ("constant", "learning rate constant, not decayed", "within it"),
        ("plateau", "when the test loss stalls, not fitted", "within it"),
    ],
)
def test_the_protocol_is_true_to_the_learning_rate(lr_schedule: str, said: str, not_said: str) -> None:
    recipe = Recipe(method="bp", lr_schedule=lr_schedule)
    for settings in (
        Settings(recipe, ("bp", "skip"), (0,), 60.0),
        Settings(recipe, ("bp", "adagp-paper", "short-bp"), (0,)),
    ):
        assert said in settings.protocol
        assert not_said not in settings.protocol
    assert "adagp-paper's time" in settings.protocol
    assert "rate" not in methods.get("short-bp").summary  # which differs; the protocol tells it


def test_the_protocol_names_the_length() -> None:
    assert Settings(Recipe(method="bp", epochs=3), ("bp",), (0,)).protocol == "3 epochs each"
    assert Settings(Recipe(method="bp", epochs=3, steps=7), ("bp",), (0,)).protocol == "7 batches each"


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
    saved = [checkpoint.load(path)["gp"]["progress"]["step_index"] for path in folder.glob("*/checkpoint.pt")]
    assert sum(saved) == 40
    with pytest.raises(RunFolderError, match="--resume"):
        compare(settings, digits, folder, device=CPU, observer=Observer(), interrupt=Interrupt())
    other = Settings(settings.recipe, settings.methods, (0, 2))
    with pytest.raises(RunFolderError, match=r"seeds \(0, 2\) against \(0, 1\)"):
        compare(other, digits, folder, device=CPU, observer=Observer(), interrupt=Interrupt(), resume=True)
    assert stored_settings(folder) == settings
    resumed = compare(settings, digits, folder, device=CPU, observer=Observer(), interrupt=Interrupt(), resume=True)
    for got, wanted in zip(resumed.methods, comparison.methods, strict=True):
        assert [seed.scores for seed in got.seeds] == [seed.scores for seed in wanted.seeds]
        assert (got.counts, got.phases, got.steps) == (wanted.counts, wanted.phases, wanted.steps)
    # Killed between the last checkpoint of a run and its other files: they are made from it again.
    lost = [folder / "mean-seed1" / name for name in ("result.json", "model.pt", "metrics.json", "quality.json")]
    for path in lost:
        path.unlink()
    compare(settings, digits, folder, device=CPU, observer=Observer(), interrupt=Interrupt(), resume=True)
    assert all(path.exists() for path in lost)
    for name in ("adagp-seed1", "short-bp-seed0"):
        one = torch.load(tmp_path / "whole" / name / "model.pt", weights_only=True)
        other_weights = torch.load(folder / name / "model.pt", weights_only=True)
        assert all(torch.equal(one[key], other_weights[key]) for key in one)


def test_budget_decides_by_the_measured_costs(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    settings = Settings(recipe.replace(method="bp"), ("bp", "skip"), (0,), budget_seconds=0.5)
    comparison = compare(settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt())
    steps = {result.method: result.steps for result in comparison.methods}
    assert steps["skip"] > steps["bp"]
    costs = Calibration(**json.loads((tmp_path / "run" / "calibration.json").read_text()))
    for name, count in steps.items():
        one = settings.recipe.replace(method=name)
        assert expected_seconds(costs, one, count, 15) <= 0.5 < expected_seconds(costs, one, count + 1, 15)


def test_budget_is_kept_where_batches_cost_what_was_measured(
    tmp_path: Path, recipe: Recipe, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which every batch takes the same time, so that the machine has no say."""
    ticks = itertools.count()
    monkeypatch.setattr(loop, "clock", lambda device: lambda: next(ticks) / 64)
    settings = Settings(recipe.replace(method="bp"), ("bp", "skip"), (0,), budget_seconds=0.5)
    comparison = compare(settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt())
    for result in comparison.methods:
        assert 0.5 - result.train_seconds / result.steps < result.train_seconds <= 0.5


@pytest.mark.parametrize("changes", [{"include": "no_such_layer"}, {"batch_size": 5000, "train_limit": None}])
def test_a_recipe_that_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, recipe: Recipe, digits: DataSet, changes: dict[str, Any]
) -> None:
    settings = Settings(recipe.replace(method="bp", **changes), ("bp", "adagp"), (0,))
    with pytest.raises(RecipeError):
        compare(settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt())
    assert list(tmp_path.iterdir()) == []


def test_threads_predictor_and_reasons_are_reported_as_they_were(
    tmp_path: Path, recipe: Recipe, digits: DataSet
) -> None:
    outside = torch.get_num_threads()
    recipe = recipe.replace(method="bp", threads=outside + 1, predictor="paper", warmup_epochs=0.2, epochs=3)
    settings = Settings(recipe, ("adagp", "adaptive"), (0,))
    comparison = compare(settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt())
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
    comparison = compare(settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt())
    assert [result.diverged for result in comparison.methods] == [1, 1]
    assert [result.speedup for result in comparison.methods] == [None, None]
    seed = comparison.methods[0].seeds[0]
    assert seed.diverged is not None
    assert "bp seed 0, epoch 1" in seed.diverged
    again = compare(
        settings, digits, tmp_path / "run", device=CPU, observer=Observer(), interrupt=Interrupt(), resume=True
    )
    assert again.methods[0].seeds[0].diverged == seed.diverged


ACCURACY = Metric("accuracy", "accuracy", is_share=True)
BLEU = Metric("bleu", "BLEU", "BLEU", 1.0)


def outcome(method: str, *accuracies: float, seconds: float = 10.0, diverged: int = 0) -> Outcome:
    return Outcome(method, ACCURACY, accuracies, seconds, 10_000, diverged)


def test_least_difference_is_the_larger_of_paired_t_test_and_resolution() -> None:
    assert least_difference(outcome("a", 0.5), outcome("b", 0.6)) is None
    # The same difference in every seed: only the test images limit what can be told. 1.96 * sqrt(2 * 0.25 / 10000).
    assert least_difference(outcome("a", 0.4, 0.6), outcome("b", 0.4, 0.6)) == pytest.approx(0.013859, rel=1e-3)
    # Differences 0 and 0.2: mean 0.1, standard error 0.1, and t of one degree of freedom.
    assert least_difference(outcome("a", 0.5, 0.7), outcome("b", 0.5, 0.5)) == pytest.approx(1.27062, rel=1e-4)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_methods_that_are_the_same_seldom_seem_different(seeds: int) -> None:
    """With enough test images for the seeds to decide, at most the level's share of comparisons shows a difference."""
    draw = random.Random(seeds)
    trials, wrong = 4000, 0
    for _ in range(trials):
        one, other = (
            Outcome(name, ACCURACY, tuple(draw.gauss(0.9, 0.01) for _ in range(seeds)), 1.0, 10**9)
            for name in ("a", "b")
        )
        least = least_difference(one, other)
        assert least is not None
        wrong += abs(one.mean - other.mean) > least
    # Three standard errors of a share of 5 % in so many trials.
    assert wrong / trials == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / trials) ** 0.5)
    assert t_quantile(0.05, seeds - 1) > 2


def test_a_run_that_ended_early_is_no_speed_up() -> None:
    bp = outcome("bp", 0.9, 0.9, seconds=20.0)
    assert speedup(outcome("adagp", 0.9, 0.9), bp) == 2.0
    assert speedup(outcome("adagp", 0.1, 0.9, seconds=1.0, diverged=1), bp) is None
    assert speedup(outcome("adagp", 0.9, 0.9), outcome("bp", 0.1, 0.9, diverged=1)) is None
    text = verdict([bp, outcome("adagp", 0.1, 0.9, seconds=1.0, diverged=1), outcome("skip", 0.9, 0.9)])
    assert "x the time of bp" not in text
    assert "1.0 s" not in text
    assert "adagp diverged in 1 of 2 runs" in text


@pytest.mark.parametrize(
    ("skip", "short", "parts"),
    [
        ((0.90, 0.90), (0.90, 0.90), ["not better than skip or short-bp by anything that 2 seeds can show"]),
        ((0.80, 0.80), (0.80, 0.80), ["was better than skip and short-bp: its predictions paid"]),
        ((0.80, 0.80), (0.95, 0.95), ["better than skip, was worse than short-bp: its predictions are not shown"]),
        ((0.85, 0.89), (0.80, 0.80), ["was better than short-bp", "not better than skip", "are not shown to pay"]),
        ((0.80,), (0.80,), ["one seed cannot show whether adagp is better than skip or short-bp: run more"]),
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
    assert ("5 % level" in text) == (len(skip) > 1)
    for part in parts:
        assert part in text


def test_every_adagp_method_gets_its_verdict() -> None:
    text = verdict(
        [
            outcome("bp", 0.9, 0.9),
            outcome("adaptive", 0.9, 0.9),
            outcome("adagp", 0.7, 0.7),
            outcome("adagp-paper", 0.95, 0.95),
            outcome("skip", 0.8, 0.8),
        ]
    )
    assert [line.partition("Verdict: ")[2].partition(":")[0] for line in text.splitlines()[:3]] == [
        "adagp was worse than skip",
        "adagp-paper was better than skip",
        "adaptive was better than skip",
    ]


def test_verdict_under_a_budget_takes_bp_as_the_rival() -> None:
    outcomes = [outcome("bp", 0.95, 0.95), outcome("adagp", 0.90, 0.90), outcome("skip", 0.8, 0.8)]
    assert "worse than bp" in verdict(outcomes, equal_time=True)
    assert "Verdict: adagp was better than skip: its predictions paid" in verdict(outcomes)


def test_an_impossible_difference_is_not_asked_for() -> None:
    wide = verdict([outcome("adagp", 0.1, 0.9), outcome("skip", 0.9, 0.1)])
    assert "no difference that 2 seeds can show; they differ too much: run more" in wide


def test_approximations_are_held_against_short_bp_alone() -> None:
    outcomes = [outcome("bp", 0.9, 0.9), outcome("skip", 0.99, 0.99), outcome("zero", 0.9, 0.9)]
    assert "No short-bp took part, so it is open whether the approximations earned anything." in verdict(outcomes)
    text = verdict([*outcomes, outcome("short-bp", 0.8, 0.8)])
    assert "Verdict: zero was better than short-bp: its approximations paid." in text
    on_ladder = verdict([outcome("skip", 0.99, 0.99), outcome("prefix-zero", 0.9, 0.9)])
    assert "Verdict: prefix-zero was worse than skip: its approximations are not shown to pay" in on_ladder


def test_a_verdict_on_bleu_speaks_of_bleu_and_of_seeds_alone() -> None:
    def bleu(method: str, *scores: float) -> Outcome:
        return Outcome(method, BLEU, scores, 10.0, 1000)

    assert least_difference(bleu("a", 20.0, 22.0), bleu("b", 20.0, 22.0)) == 0.0  # no share: test items say nothing
    text = verdict([bleu("bp", 33.0, 33.5), bleu("adagp", 33.4, 33.9), bleu("skip", 30.0, 30.5)])
    assert "adagp reached 33.65 BLEU in 10.0 s" in text
    assert "33.25 BLEU: +0.40 points" in text
    assert "test items resolve" not in text
    assert "was better than skip" in text


def test_verdict_without_adagp() -> None:
    assert "nothing to judge" in verdict([outcome("bp", 0.9, 0.9)])
