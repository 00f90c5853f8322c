"""What `sampled` shows of a layer when it is tried beside the exact gradient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from adagp.schedules.breakeven import kept_progress, most_added_variance, saved_share

LEAST_WORTH = 1.02
"""The progress in a second that a rate must promise to be chosen, that of the exact gradient being 1."""


@dataclass(frozen=True)
class Trial:
    """One layer in one batch.

    Attributes:
        other_seconds: Of its forward and of its input gradient.
        exact_seconds: Of its exact weight gradient.
        seconds: Of the sampled one, by rate.
        added: The squared distance of the sampled weight gradient from the exact one, over the square of the latter,
            by rate.
        spread: One less the cosine of the exact one with that of the batch before: the share of its square that is
            noise between batches. None where there was none before. (Squared distances would also see how far the
            weights have moved, and the halves of a batch are tied together by batch norms.)
    """

    other_seconds: float
    exact_seconds: float
    seconds: Mapping[float, float]
    added: Mapping[float, float]
    spread: float | None

    @property
    def is_finite(self) -> bool:
        """Whether the gradients were: a GradScaler lets some batches overflow."""
        return all(map(isfinite, self.added.values())) and (self.spread is None or isfinite(self.spread))

    def __add__(self, other: "Trial") -> "Trial":
        """Two calls of the layer in one batch."""
        spreads = (self.spread, other.spread)
        return Trial(
            self.other_seconds + other.other_seconds,
            self.exact_seconds + other.exact_seconds,
            {rate: value + other.seconds[rate] for rate, value in self.seconds.items()},
            {rate: value + other.added[rate] for rate, value in self.added.items()},
            None if None in spreads else sum(spread for spread in spreads if spread is not None),
        )


@dataclass(frozen=True)
class Finding:
    """What some trials of a layer say about one rate.

    Attributes:
        rate: The share of positions.
        saved: The share of the layer's time that is saved.
        added_variance: Over that between batches.
    """

    rate: float
    saved: float
    added_variance: float

    @property
    def most_added_variance(self) -> float:
        """The break-even: what would still pay."""
        return most_added_variance(max(self.saved, 0.0))

    @property
    def pays(self) -> bool:
        """Whether time is saved, and more of it than progress is lost."""
        return self.saved > 0 and self.added_variance < self.most_added_variance

    @property
    def worth(self) -> float:
        """The progress in a second, that of the exact gradient being 1."""
        return kept_progress(1.0, self.added_variance, unbiased=True) / (1 - self.saved)


def findings(trials: Sequence[Trial]) -> list[Finding]:
    """What trials say about each rate; empty while the spread is not known.

    The shortest time counts, because other work on the machine only ever adds to it.
    """
    spreads = [trial.spread for trial in trials if trial.spread is not None]
    if not spreads:
        return []
    spread, exact = fmean(spreads), min(trial.exact_seconds for trial in trials)
    whole = exact + min(trial.other_seconds for trial in trials)

    def finding(rate: float) -> Finding:
        seconds, added = min(one.seconds[rate] for one in trials), fmean(one.added[rate] for one in trials)
        saved = saved_share(exact / whole, seconds / exact) if whole > 0 and exact > 0 else 0.0
        return Finding(rate, saved, added / spread if spread > 0 else float("inf"))

    return [finding(rate) for rate in trials[0].seconds]


def best(found: Sequence[Finding]) -> Finding | None:
    """The rate that makes most progress in a second; None where none pays by more than measurements err."""
    paying = (one for one in found if one.pays and one.worth >= LEAST_WORTH)
    return max(paying, key=lambda one: one.worth, default=None)
