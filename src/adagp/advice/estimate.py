"""A ratio of times from repeated rounds: its median, where it may lie, and how long a clearer answer would take."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb, exp, inf, log, sqrt
from statistics import mean, median, stdev
from typing import Any

LEVEL = 0.99
"""Confidence of an interval. About ten options are judged at once: with 95 % each, one false promise would be usual."""
PLACEMENT = 1.03
"""How far a new process, or another place in memory, moves a ratio by itself. No number of rounds averages it out."""
RESOLUTION = 0.02
"""The smallest relative difference beyond `PLACEMENT` that is worth asking for."""
MOST_ROUNDS = 200
"""More would not make an interval visibly narrower."""
# Student's distribution, two-sided at LEVEL, by degrees of freedom: order statistics need eight values.
_STUDENT = {2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707}
_NORMAL = 2.576
# The median of many normal values scatters 1.253 times as far as their mean.
_MEDIAN_FACTOR = 1.253


@dataclass(frozen=True)
class Estimate:
    """How much faster an option is than what it is compared with.

    Attributes:
        ratio: The median over the rounds; above 1 is faster.
        low: Lower end of the interval.
        high: Upper end of the interval.
        rounds: Rounds measured.
        seconds_needed: About how many seconds to ask for, until a difference like this one, or of 5 %, would be seen,
            or `MOST_ROUNDS` are done; infinite where they are.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    seconds_needed: float

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval says so."""
        return self.low > 1

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval says so."""
        return self.high < 1

    @property
    def is_open(self) -> bool:
        """Whether more time may tell more: nothing is sure, and noise is why."""
        if self.seconds_needed == inf or self.is_faster or self.is_slower:
            return False
        if self.high == inf:
            return True
        worth_knowing, noise = self.high > PLACEMENT * (1 + RESOLUTION), self.high / self.low / PLACEMENT**2
        return worth_knowing and noise > 1 + RESOLUTION

    def text(self) -> str:
        """The ratio with its interval; without an interval only that it is unknown."""
        if self.high == inf:
            return "unknown"
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an end that is not known is None."""
        return {
            "ratio": self.ratio,
            "low": None if self.high == inf else self.low,
            "high": None if self.high == inf else self.high,
            "rounds": self.rounds,
            "seconds_needed": None if self.seconds_needed == inf else self.seconds_needed,
        }


def estimate(ratios: Sequence[float], round_seconds: float) -> Estimate:
    """What some rounds say about a ratio: the interval of their median, wider by `PLACEMENT` on both sides.

    Args:
        ratios: One for each round.
        round_seconds: How many seconds are asked for to get one more round.
    """
    low, high = interval(ratios)
    rounds, needed = len(ratios), _seconds_needed(ratios, round_seconds)
    return Estimate(median(ratios), low / PLACEMENT, high * PLACEMENT, rounds, needed)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of many more such positive values lies, with a confidence of at least `LEVEL`.

    From eight values on by their order alone, whatever their distribution: the number of values below the median is
    that of heads among as many coins. With three to seven, by Student's distribution of their logarithms. Fewer tell
    nothing.
    """
    count = len(values)
    if count < 3:
        return 0.0, inf
    ranked = sorted(values)
    left_out = _left_out(count)
    if left_out is not None:
        return ranked[left_out], ranked[count - 1 - left_out]
    logs = [log(value) for value in values]
    centre, margin = mean(logs), _STUDENT[count - 1] * stdev(logs) / sqrt(count)
    # The median is what is shown: it must not lie outside.
    return min(exp(centre - margin), median(values)), max(exp(centre + margin), median(values))


def _left_out(count: int) -> int | None:
    """How many values lie outside at either end; None where even all of them do not reach `LEVEL`."""
    outside, found = 0.0, None
    for heads in range(count // 2):
        outside += 2 * comb(count, heads) / 2**count
        if outside > 1 - LEVEL:
            break
        found = heads
    return found


def _seconds_needed(ratios: Sequence[float], round_seconds: float) -> float:
    """Rounds until the interval would be narrower than the difference, times the seconds of one."""
    if len(ratios) >= MOST_ROUNDS:
        return inf
    if len(ratios) < 3:
        return 8 * round_seconds
    logs = [log(value) for value in ratios]
    difference = max(abs(median(logs)) - log(PLACEMENT), log(1 + RESOLUTION))
    rounds = ceil((_NORMAL * _MEDIAN_FACTOR * stdev(logs) / difference) ** 2)
    return min(max(rounds, 8), MOST_ROUNDS) * round_seconds
