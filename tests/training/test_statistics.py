from statistics import NormalDist

import pytest

from adagp.training.statistics import standard_deviation, t_quantile, t_within

# From printed tables of Student's t, two-sided.
TABLE = [
    (0.05, 1, 12.7062),
    (0.05, 2, 4.3027),
    (0.05, 3, 3.1824),
    (0.05, 4, 2.7764),
    (0.05, 5, 2.5706),
    (0.05, 9, 2.2622),
    (0.05, 10, 2.2281),
    (0.05, 30, 2.0423),
    (0.05, 120, 1.9799),
    (0.01, 1, 63.6567),
    (0.01, 4, 4.6041),
    (0.10, 7, 1.8946),
]


@pytest.mark.parametrize(("level", "freedom", "wanted"), TABLE)
def test_printed_table(level: float, freedom: int, wanted: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(wanted, abs=6e-5)
    assert t_within(t_quantile(level, freedom), freedom) == pytest.approx(1 - level)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert t_quantile(0.05, 5000) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-3)


@pytest.mark.parametrize(("level", "freedom"), [(0.0, 3), (1.0, 3), (0.05, 0)])
def test_there_is_no_such_quantile(level: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="degree of freedom"):
        t_quantile(level, freedom)


def test_standard_deviation() -> None:
    assert standard_deviation([2.0, 4.0]) == pytest.approx(2**0.5)
