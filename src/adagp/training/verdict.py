"""One computed sentence about what a comparison shows."""

from dataclasses import dataclass
from math import sqrt

REFERENCES = ("adagp", "adagp-paper", "adaptive")


@dataclass(frozen=True)
class Outcome:
    """What the verdict needs to know of one method.

    Attributes:
        method: Its name.
        accuracies: Test accuracy of each seed, from 0 to 1.
        seconds: Mean training seconds.
        test_images: How many images the accuracies were measured on.
        diverged: How many of its runs diverged; they count with the accuracy they ended with.
    """

    method: str
    accuracies: tuple[float, ...]
    seconds: float
    test_images: int
    diverged: int = 0

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single seed."""
        count = len(self.accuracies)
        if count < 2:
            return None
        return sqrt(sum((value - self.mean) ** 2 for value in self.accuracies) / (count - 1))


def noise(one: Outcome, other: Outcome) -> float | None:
    """How large a difference in mean accuracy must be to be called one; None when there is only one seed.

    The larger of the pooled spread over seeds and the resolution of the test set (the standard error of an accuracy
    measured on so many images): two seeds can agree by chance.
    """
    if one.spread is None or other.spread is None:
        return None
    pooled = sqrt((one.spread**2 + other.spread**2) / 2)
    resolution = sqrt(max(one.mean * (1 - one.mean), other.mean * (1 - other.mean)) / one.test_images)
    return max(pooled, resolution)


def verdict(outcomes: list[Outcome], *, equal_time: bool = False) -> str:
    """ADA-GP against leaving its GP batches out and against plain backpropagation in the same time.

    That is short-bp, or with `equal_time` (a budget of seconds for everyone) bp itself.
    """
    by_name = {outcome.method: outcome for outcome in outcomes}
    reference = next((by_name[name] for name in REFERENCES if name in by_name), None)
    if reference is None:
        return "No ADA-GP method took part, so there is nothing to judge."
    bp = by_name.get("bp")
    short = by_name.get("short-bp")
    parts = [f"{reference.method} reached {_percent(reference.mean)} in {reference.seconds:.1f} s"]
    if bp is not None:
        share = reference.seconds / bp.seconds
        parts[0] += f", {share:.2f} x the time of bp ({_percent(bp.mean)}: {_difference(reference, bp)})"
    timed = short or (bp if equal_time else None)
    rivals = [rival for rival in (by_name.get("skip"), timed) if rival is not None]
    parts += [
        f"{rival.method} reached {_percent(rival.mean)} in {rival.seconds:.1f} s ({_difference(reference, rival)})"
        for rival in rivals
        if rival is not bp
    ]
    lost = [
        f" {outcome.method} diverged in {outcome.diverged} of {len(outcome.accuracies)} runs."
        for outcome in outcomes
        if outcome.diverged
    ]
    return f"{'; '.join(parts)}.{''.join(lost)} {_conclusion(reference, rivals)}"


def _difference(reference: Outcome, rival: Outcome) -> str:
    difference = reference.mean - rival.mean
    limit = noise(reference, rival)
    points = f"{100 * difference:+.2f} points"
    if limit is None:
        return f"{points}, one seed: unjudged"
    if abs(difference) <= limit:
        return f"{points}, no measurable difference at a noise of {100 * limit:.2f}"
    return f"{points}, beyond the noise of {100 * limit:.2f}"


def _conclusion(reference: Outcome, rivals: list[Outcome]) -> str:
    if not rivals:
        return "Neither skip nor short-bp took part, so it is open whether the predictions earned anything."
    better, ahead, not_better = [], [], []
    for rival in rivals:
        difference, limit = reference.mean - rival.mean, noise(reference, rival)
        if limit is not None and difference > limit:
            better.append(rival.method)
        elif limit is None and difference > 0:
            ahead.append(rival.method)
        else:
            not_better.append(rival.method)
    name = reference.method
    if not_better:
        text = f"Verdict: {name} was not better than {' or '.join(not_better)} here"
        if better:
            return f"{text}, though it was better than {' and '.join(better)}."
        return f"{text}: its predictions did not pay for themselves."
    if ahead:
        return f"Verdict: {name} is ahead of {' and '.join(ahead)}, but one seed proves nothing: run more seeds."
    return f"Verdict: {name} was better than {' and '.join(better)} here, beyond the noise: its predictions paid."


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
