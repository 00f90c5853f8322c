"""Student's t distribution for whole degrees of freedom: a finite sum, and not worth a dependency on SciPy."""

from collections.abc import Sequence
from math import atan2, cos, pi, sin, sqrt


def t_quantile(level: float, freedom: int) -> float:
    """The value that |T| exceeds with probability `level` (two-sided) at `freedom` degrees of freedom."""
    if not 0 < level < 1 or freedom < 1:
        raise ValueError(f"level = {level}, freedom = {freedom}: need 0 < level < 1 and at least one degree of freedom")
    low, high = 0.0, 1.0
    while t_within(high, freedom) < 1 - level:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if t_within(middle, freedom) < 1 - level:
            low = middle
        else:
            high = middle
    return high


def t_within(t: float, freedom: int) -> float:
    """The probability that |T| is smaller than `t` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan2(t, sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def standard_deviation(values: Sequence[float]) -> float:
    """The sample's estimate of the population's, which needs at least two values."""
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
