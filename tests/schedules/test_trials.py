"""What trials of `sampled` say about a layer: the break-even by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp.schedules import Trial
from adagp.schedules.trials import LEAST_WORTH, best, findings

positive = st.floats(1e-4, 1e4)


def trial(seconds: float = 0.5, added: float = 0.2, spread: float | None = 1.0) -> Trial:
    return Trial(2.0, 1.0, {0.25: seconds}, {0.25: added}, spread)


def test_a_rate_pays_if_it_adds_less_variance_than_its_time_is_worth() -> None:
    (found,) = findings([trial(), trial()])
    assert found.saved == pytest.approx(0.5 / 3)
    assert found.added_variance == pytest.approx(0.2)
    assert found.most_added_variance == pytest.approx((0.5 / 3) / (1 - 0.5 / 3))  # 0.2
    assert findings([trial(added=0.19)])[0].pays
    assert not findings([trial(added=0.21)])[0].pays


@given(positive, positive, positive, positive, positive)
def test_what_pays_is_what_makes_more_progress_in_a_second(
    other: float, exact: float, seconds: float, added: float, spread: float
) -> None:
    (found,) = findings([Trial(other, exact, {0.5: seconds}, {0.5: added}, spread)])
    worth = 1 / (1 + added / spread) / ((other + seconds) / (other + exact))
    assert found.worth == pytest.approx(worth)
    if abs(worth - 1) > 1e-6:
        assert found.pays == (worth > 1)


def test_the_shortest_seconds_count_and_the_mean_of_squares() -> None:
    (found,) = findings([trial(0.5, 0.1, None), trial(9.0, 0.1, 1.0), trial(0.5, 0.4, 3.0)])
    assert found.saved == pytest.approx(0.5 / 3)
    assert found.added_variance == pytest.approx(0.2 / 2)


def test_without_a_spread_nothing_is_known() -> None:
    assert findings([trial(spread=None)]) == []
    assert best([]) is None


def test_batches_that_do_not_differ_pay_for_no_noise() -> None:
    assert not findings([trial(spread=0.0)])[0].pays


def test_the_best_rate_is_the_one_with_the_highest_worth() -> None:
    one = Trial(2.0, 1.0, {0.1: 0.2, 0.25: 0.4, 0.5: 0.7}, {0.1: 0.3, 0.25: 0.05, 0.5: 0.02}, 1.0)
    chosen = best(findings([one]))
    assert chosen is not None
    assert chosen.rate == 0.25


def test_a_gain_within_the_error_of_measurements_is_not_chosen() -> None:
    (found,) = findings([trial(added=0.19)])
    assert found.pays
    assert 1 < found.worth < LEAST_WORTH
    assert best([found]) is None
    assert best(findings([trial(added=0.15)])) is not None


def test_two_calls_of_a_layer_add_up() -> None:
    assert trial() + trial() == Trial(4.0, 2.0, {0.25: 1.0}, {0.25: 0.4}, 2.0)
    assert (trial() + trial(spread=None)).spread is None
