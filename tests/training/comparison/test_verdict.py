import random

import pytest

from adagp.training.comparison.verdict import Outcome, least_difference, speedup, verdict
from adagp.training.tasks import Metric

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


@pytest.mark.parametrize(
    ("adagp", "conclusion"),
    [((20.0, 20.1), "was better than skip: its predictions paid"), ((40.0, 40.1), "was worse than skip")],
)
def test_a_lower_perplexity_is_the_better_one(adagp: tuple[float, ...], conclusion: str) -> None:
    perplexity = Metric("perplexity", "perplexity", "perplexity", 1.0, lower_is_better=True)
    outcomes = [
        Outcome(name, perplexity, scores, 1.0, 100) for name, scores in (("adagp", adagp), ("skip", (30.0, 30.1)))
    ]
    text = verdict(outcomes)
    assert conclusion in text
    assert f"adagp reached {sum(adagp) / 2:.2f} perplexity" in text
    assert "Lower is better for perplexity." in text


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
            outcome("short-bp", *short, seconds=15.0),
        ]
    )
    assert "0.75 x the time of bp" in text
    assert ("5 % level" in text) == (len(skip) > 1)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("short", "seconds", "conclusion"),
    [
        (0.95, 12.0, "was worse than short-bp, which had 1.20 x its time: it is open whether its small images paid"),
        (0.90, 12.0, "was not better than short-bp by anything that 2 seeds can show: its small images are not shown"),
        (0.80, 8.0, "was better than short-bp, which had 0.80 x its time: it is open"),
        (0.80, 12.0, "was better than short-bp: its small images paid"),
        (0.95, 8.0, "was worse than short-bp: its small images are not shown"),
        (0.95, 10.9, "was worse than short-bp: its small images are not shown"),
    ],
)
def test_who_is_better_in_more_time_has_shown_nothing(short: float, seconds: float, conclusion: str) -> None:
    text = verdict([outcome("progressive", 0.9, 0.9), outcome("short-bp", short, short, seconds=seconds)])
    assert f"Verdict: progressive {conclusion}" in text


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
