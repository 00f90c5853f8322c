"""The statistics, against scipy's own paired test and figures worked out by hand."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adagp.training.budget.judge import Reached, Speed, interval, p_value, speed, standing, time_to, verdict
from adagp.training.tasks import Metric

ACCURACY = Metric("accuracy", "accuracy", is_share=True)
PERPLEXITY = Metric("perplexity", "perplexity", "perplexity", 1.0, lower_is_better=True)
SCORES = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)


def test_the_test_is_scipys_paired_one() -> None:
    one, two = [0.61, 0.63, 0.60, 0.66, 0.62], [0.60, 0.60, 0.59, 0.61, 0.60]
    differences = [a - b for a, b in zip(one, two, strict=True)]
    assert p_value(differences) == pytest.approx(stats.ttest_rel(one, two).pvalue)
    assert p_value([0.1]) is None
    assert p_value([0.0, 0.0]) == 1.0
    low, high = stats.ttest_rel(one, two).confidence_interval(0.95)
    found = interval(differences)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_the_time_to_a_target_by_hand() -> None:
    scores = {50.0: 0.5, 100.0: 0.7}
    assert time_to(0.6, scores, ACCURACY).seconds == pytest.approx(50 * math.sqrt(2))
    assert time_to(0.5, scores, ACCURACY) == Reached(50.0, at_most=True)
    assert time_to(0.71, scores, ACCURACY) == Reached(None)
    assert time_to(30.0, {50.0: 40.0, 100.0: 20.0}, PERPLEXITY).seconds == pytest.approx(50 * math.sqrt(2))


@given(SCORES, st.floats(0.01, 1.0), st.floats(0.0, 0.5))
def test_a_better_method_is_never_later(scores: list[float], target: float, more: float) -> None:
    lengths = (50.0, 70.0, 100.0)
    rising = sorted(scores)
    mine = time_to(target, dict(zip(lengths, rising, strict=True)), ACCURACY)
    better = time_to(target, dict(zip(lengths, [score + more for score in rising], strict=True)), ACCURACY)
    if mine.seconds is not None:
        assert better.seconds is not None
        assert better.seconds <= mine.seconds * (1 + 1e-9)
        assert 50.0 <= mine.seconds <= 100.0 * (1 + 1e-9)
    for low, high in pairwise(sorted((0.2, target, 0.9))):
        early, late = (time_to(at, dict(zip(lengths, rising, strict=True)), ACCURACY).seconds for at in (low, high))
        assert late is None or (early is not None and early <= late * (1 + 1e-9))


def test_the_speed_is_paired_by_seed() -> None:
    pairs = [(Reached(70.0), Reached(50.0)), (Reached(77.0), Reached(55.0)), (Reached(63.0), Reached(46.0))]
    found = speed(Reached(70.0), Reached(50.0), pairs)
    logs = [math.log(a.seconds / b.seconds) for a, b in pairs if a.seconds and b.seconds]
    assert found.ratio == pytest.approx(1.4)
    assert found.p == pytest.approx(stats.ttest_1samp(logs, 0.0).pvalue)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.4 < found.high
    open_end = speed(Reached(70.0), Reached(50.0, at_most=True), [*pairs, (Reached(70.0), Reached(None))])
    assert (open_end.bound, open_end.p) == ("at least", None)
    assert speed(Reached(70.0), Reached(None), pairs) == Speed(None)
    early = Reached(50.0, at_most=True)
    assert speed(early, early, pairs) == Speed(None, "open")
    bounded = speed(early, Reached(60.0), [(early, Reached(60.0)), (early, Reached(61.0))])
    assert (bounded.bound, bounded.p) == ("at most", None)  # plain backpropagation may be sooner than that


def test_few_seeds_claim_nothing() -> None:
    assert [standing(count) for count in (2, 3, 4, 5)] == ["too few seeds", "so far", "so far", "claim"]
    faster = Speed(1.5, p=0.01)
    assert verdict(2, 0.1, 0.001, faster) == "too few seeds to say (2 seeds)"
    assert verdict(3, 0.1, 0.001, faster) == "so far: better, faster to the target (3 seeds)"
    assert verdict(5, 0.1, 0.001, faster) == "better, faster to the target (5 seeds)"
    assert verdict(5, -0.1, 0.001, Speed(None)) == "worse, target not reached (5 seeds)"
    assert verdict(5, 0.1, 0.2, Speed(None, "open")) == "no difference shown, target too easy (5 seeds)"
    assert verdict(5, 0.1, 0.2, Speed(1.5, p=0.2)) == "no difference shown (5 seeds)"
