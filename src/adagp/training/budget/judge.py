"""Figures of the methods of a comparison, paired by seed with plain backpropagation; pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from adagp.training.tasks import Metric

LEVEL = 0.05
SEEDS_FOR_A_CLAIM = 5
SEEDS_SO_FAR = 3


@dataclass(frozen=True)
class Interval:
    """A mean and its two-sided 95 % interval by Student's t; without bounds for fewer than two values."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Reached:
    """When a score was reached, in seconds of the budget.

    Attributes:
        seconds: The time; with `at_most` an upper bound, None if no budget was enough.
        at_most: Whether the smallest budget was enough already.
    """

    seconds: float | None
    at_most: bool = False


def interval(values: Sequence[float]) -> Interval:
    """The mean of some values and its interval."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, None, None, len(values))
    from scipy.stats import t  # here, because it takes a second to import

    half = float(t.ppf(1 - LEVEL / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def p_value(differences: Sequence[float]) -> float | None:
    """The probability of such a mean or a more distant one if the true one were 0: a paired t test, two-sided."""
    if len(differences) < 2:
        return None
    if len(set(differences)) == 1:
        return 1.0 if differences[0] == 0 else 0.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def time_to(target: float, scores: Mapping[float, float], metric: Metric) -> Reached:
    """When a target is reached, from the final scores of runs of several lengths (seconds: score).

    Between two lengths the score is taken to be linear in the logarithm of the time. Each score is that of a run whose
    learning rate was decayed in full, so that no method is judged by a run that was cut short.
    """
    lengths = sorted(scores)
    before: float | None = None
    for length in lengths:
        if metric.gain(scores[length], target) >= 0:
            if before is None:
                return Reached(length, at_most=True)
            part = (target - scores[before]) / (scores[length] - scores[before])
            return Reached(math.exp(math.log(before) + part * (math.log(length) - math.log(before))))
        before = length
    return Reached(None)


@dataclass(frozen=True)
class Speed:
    """How much sooner than plain backpropagation a method reaches the target.

    Attributes:
        ratio: Plain backpropagation's time over the method's, of the curves of mean scores; None if unknown.
        bound: `at least` or `at most` where one of the two reached it in the smallest budget already, `open` where both
            did; else empty.
        low: Lower end of the 95 % interval over seeds; None where a seed did not reach the target, or plain
            backpropagation did so in the smallest budget. (A method that did so counts with that budget: it is no
            slower.)
        high: Upper end.
        p: Of the paired test that the ratio is 1, on logarithms.
    """

    ratio: float | None
    bound: str = ""
    low: float | None = None
    high: float | None = None
    p: float | None = None


def speed(plain: Reached, method: Reached, pairs: Sequence[tuple[Reached, Reached]]) -> Speed:
    """The speed of a method from both means, and from the pairs of plain backpropagation and method of each seed."""
    if plain.seconds is None or method.seconds is None:
        return Speed(None)
    if plain.at_most and method.at_most:
        return Speed(None, "open")
    ratio = plain.seconds / method.seconds
    bound = "at least" if method.at_most else "at most" if plain.at_most else ""
    logs = []
    for of_plain, of_method in pairs:
        if of_plain.seconds is None or of_method.seconds is None or of_plain.at_most:
            return Speed(ratio, bound)
        logs.append(math.log(of_plain.seconds / of_method.seconds))
    if len(logs) < 2:
        return Speed(ratio, bound)
    found = interval(logs)
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Speed(ratio, bound, low, high, p_value(logs))


def standing(count: int) -> str:
    """What so many paired seeds allow to be said."""
    if count >= SEEDS_FOR_A_CLAIM:
        return "claim"
    return "so far" if count >= SEEDS_SO_FAR else "too few seeds"


def verdict(count: int, gain: float, gain_p: float | None, faster: Speed) -> str:
    """One phrase about a method: what is shown against plain backpropagation, and by how many seeds."""
    seeds = f"{count} seed{'' if count == 1 else 's'}"
    if count < SEEDS_SO_FAR:
        return f"too few seeds to say ({seeds})"
    sure = gain_p is not None and gain_p < LEVEL
    better = "no difference shown" if not sure else "better" if gain > 0 else "worse"
    pace = ""
    if faster.ratio is None:
        pace = ", target too easy" if faster.bound else ", target not reached"
    elif faster.p is not None and faster.p < LEVEL:
        pace = f", {'faster' if faster.ratio > 1 else 'slower'} to the target"
    return f"{'so far: ' if standing(count) == 'so far' else ''}{better}{pace} ({seeds})"
