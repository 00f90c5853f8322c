import pytest

from adagp.schedules.breakeven import kept_progress, least_cosine, most_added_variance, saved_share


def test_the_published_thresholds() -> None:
    """The figures of the derivation: weight gradients are a third of a batch, a whole backward two thirds."""
    assert most_added_variance(saved_share(1 / 3, 0.5)) == pytest.approx(0.20)
    assert most_added_variance(saved_share(1 / 3, 0.25)) == pytest.approx(1 / 3)
    assert least_cosine(2 / 3) == pytest.approx(0.58, abs=0.003)
    assert least_cosine(1 / 3) == pytest.approx(0.82, abs=0.004)


@pytest.mark.parametrize("saved", [0.05, 0.3, 0.9])
def test_the_thresholds_are_where_worth_is_one(saved: float) -> None:
    time = 1 - saved
    assert kept_progress(0.0, most_added_variance(saved), unbiased=True) / time == pytest.approx(1.0)
    assert kept_progress(least_cosine(saved), None, unbiased=False) / time == pytest.approx(1.0)
    assert kept_progress(-0.9, 0.0, unbiased=False) == 0.0, "a step backwards is no progress"
