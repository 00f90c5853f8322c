"""Computed sentences about what a comparison shows, and what its few seeds cannot show."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

from adagp.training import methods
from adagp.training.methods import Planning
from adagp.training.tasks import Metric

BASELINES = ("skip", "mean", "last", "momentum")
REFERENCES = tuple(
    name for name in methods.names() if name not in BASELINES and methods.get(name).planning is not Planning.BACKPROP
)
"""The methods that are judged; short-bp gets the time of the slowest that takes part."""
MOST_TIME = 1.1
"""A method that is better in more than this share of the other's time has shown nothing by that. It happens to short-bp
where another method judged is slower, or where the machine was not quiet."""
LEVEL = 0.05


@dataclass(frozen=True)
class Outcome:
    """The figures of one method that the verdict is computed from.

    Attributes:
        method: Its name.
        metric: The metric that its scores are values of.
        scores: The score of each seed; all methods have the same seeds in the same order.
        seconds: Mean training seconds.
        test_items: The number of test images or sentences.
        diverged: The number of its runs that diverged; their score is that of their last weights.
    """

    method: str
    metric: Metric
    scores: tuple[float, ...]
    seconds: float
    test_items: int
    diverged: int = 0

    @property
    def mean(self) -> float:
        """Mean score."""
        return fmean(self.scores)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single seed."""
        return stdev(self.scores) if len(self.scores) > 1 else None


def least_difference(one: Outcome, other: Outcome) -> float | None:
    """The smallest difference in mean score that is significant; None for one seed.

    A two-sided paired t test at `LEVEL`: methods under one seed share initial weights and the order of the items, so
    the variation of their difference over seeds counts. For accuracy the threshold is at least the sampling error of
    the test set (difference of two proportions), because a few seeds can agree by chance.
    """
    count = len(one.scores)
    if count < 2:
        return None
    from scipy.stats import t  # here, because it takes a second to import

    differences = [mine - theirs for mine, theirs in zip(one.scores, other.scores, strict=True)]
    over_seeds = float(t.ppf(1 - LEVEL / 2, count - 1)) * stdev(differences) / sqrt(count)
    if not one.metric.is_share:
        return over_seeds
    variance = sum(outcome.mean * (1 - outcome.mean) / outcome.test_items for outcome in (one, other))
    return max(over_seeds, NormalDist().inv_cdf(1 - LEVEL / 2) * sqrt(variance))


def speedup(method: Outcome, bp: Outcome) -> float | None:
    """Seconds of bp divided by the method's; None when a run of either diverged and so ended early."""
    return None if method.diverged or bp.diverged else bp.seconds / method.seconds


def verdict(outcomes: list[Outcome], *, equal_time: bool = False) -> str:
    """One line for each method that predicts or approximates, against plain backpropagation in the same time.

    That is short-bp, or with `equal_time` (all methods had the same seconds) bp itself. Methods on the ladder are also
    compared with skip, which leaves out the GP batches.
    """
    by_name = {outcome.method: outcome for outcome in outcomes}
    references = [by_name[name] for name in REFERENCES if name in by_name]
    if not references:
        return "No method that predicts or approximates took part, so there is nothing to judge."
    bp = by_name.get("bp")
    timed = by_name.get("short-bp") or (bp if equal_time else None)
    rivals = [rival for rival in (by_name.get("skip"), timed) if rival is not None]
    lines = []
    for reference in references:
        fair = [rival for rival in rivals if rival.method != "skip" or _on_ladder(reference.method)]
        lines.append(f"{_facts(reference, bp, fair)} {_conclusion(reference, fair)}")
    lines += [
        f"{outcome.method} diverged in {outcome.diverged} of {len(outcome.scores)} runs: its time is no speed-up."
        for outcome in outcomes
        if outcome.diverged
    ]
    if references[0].metric.lower_is_better:
        lines.append(f"Lower is better for {references[0].metric.label}.")
    seeds = len(references[0].scores)
    if seeds > 1 and (bp is not None or rivals):
        lines.append(
            f"Each difference is judged by itself: t test paired over {seeds} seeds, two-sided, {100 * LEVEL:g} % level"
            f"{', and no finer than the test items resolve' if references[0].metric.is_share else ''}."
        )
    return "\n".join(lines)


def _on_ladder(name: str) -> bool:
    """Whether a method has the ladder's GP batches, so that skip is its rival."""
    return methods.get(name).planning in (Planning.LADDER, Planning.ADAPTIVE, Planning.PREFIX)


def _savings(name: str) -> str:
    """What a method does instead of plain backpropagation, in a word."""
    method = methods.get(name)
    if method.is_coarse:
        return "small images"
    return "predictions" if method.source == "predicted" else "approximations"


def _facts(reference: Outcome, bp: Outcome | None, rivals: list[Outcome]) -> str:
    parts = [_reached(reference)]
    if bp is not None:
        gain = speedup(reference, bp)
        time = "" if gain is None else f", {1 / gain:.2f} x the time of bp"
        parts[0] += f"{time} ({'bp ' if gain is None else ''}{bp.metric.show(bp.mean)}: {_difference(reference, bp)})"
    parts += [f"{_reached(rival)} ({_difference(reference, rival)})" for rival in rivals if rival is not bp]
    return f"{'; '.join(parts)}."


def _reached(outcome: Outcome) -> str:
    time = "" if outcome.diverged else f" in {outcome.seconds:.1f} s"
    return f"{outcome.method} reached {outcome.metric.show(outcome.mean)}{time}"


def _difference(reference: Outcome, rival: Outcome) -> str:
    difference, least = reference.mean - rival.mean, least_difference(reference, rival)
    scale = reference.metric.scale
    points = f"{scale * difference:+.2f} points"
    if least is None:
        return f"{points}, one seed: unjudged"
    seeds = len(reference.scores)
    if abs(difference) <= least:
        enough = (
            f"it would take {scale * least:.2f} points" if scale * least < 100 else "they differ too much: run more"
        )
        return f"{points}, no difference that {seeds} seeds can show; {enough}"
    return f"{points}, more than the {scale * least:.2f} points that chance explains"


def _conclusion(reference: Outcome, rivals: list[Outcome]) -> str:
    name, seeds = reference.method, len(reference.scores)
    judged = _savings(name)
    if not rivals:
        missing = "Neither skip nor short-bp" if _on_ladder(name) else "No short-bp"
        return f"{missing} took part, so it is open whether the {judged} earned anything."
    better: list[str] = []
    worse: list[str] = []
    same: list[str] = []
    unequal: list[str] = []
    for rival in rivals:
        gain, least = reference.metric.gain(reference.mean, rival.mean), least_difference(reference, rival)
        if least is None:
            return (
                f"Verdict: one seed cannot show whether {name} is better than "
                f"{' or '.join(rival.method for rival in rivals)}: run more seeds."
            )
        share = None if rival.method == "skip" else speedup(reference, rival)
        if abs(gain) <= least:
            same.append(rival.method)
        elif share is not None and (share < 1 / MOST_TIME if gain > 0 else share > MOST_TIME):
            was = "better" if gain > 0 else "worse"
            unequal.append(f"was {was} than {rival.method}, which had {share:.2f} x its time")
        else:
            (better if gain > 0 else worse).append(rival.method)
    found = []
    if better:
        found.append(f"was better than {' and '.join(better)}")
    if worse:
        found.append(f"was worse than {' and '.join(worse)}")
    if same:
        found.append(f"was not better than {' or '.join(same)} by anything that {seeds} seeds can show")
    if unequal and not worse and not same:
        return f"Verdict: {name} {', '.join(found + unequal)}: it is open whether its {judged} paid."
    found += unequal
    paid = "paid" if not worse and not same else "are not shown to pay for themselves"
    return f"Verdict: {name} {', '.join(found)}: its {judged} {paid}."
