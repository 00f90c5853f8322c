"""Drawing some rows of a sum so that the weighted sum of those drawn has the whole sum as its mean."""

from dataclasses import dataclass

import torch
from torch import Tensor

_ROUNDS = 20
"""At most so often rows that are certain to be drawn leave the rest of the count to the others."""


_OWN_MEAN = 4.0
"""Products of drawn rows for each sample from which on a mean of its own costs little beside them."""


def has_own_means(positions: int, taps: int, rate: float) -> bool:
    """Whether each sample has a mean input of its own, or all of them have one in common."""
    return positions * taps * rate >= _OWN_MEAN


@dataclass(frozen=True)
class Scored:
    """The score of every position, and the exact sums that go with the means of the input.

    Attributes:
        scores: In the order of samples and positions, flat.
        means: The mean input of each sample, or of all of them, by channels.
        totals: The sum of `grad_output` over the positions of each sample, by channels.
    """

    scores: Tensor
    means: Tensor
    totals: Tensor


@dataclass(frozen=True)
class Draw:
    """The drawn rows in order, and the weight of each: one over its probability."""

    rows: Tensor
    weights: Tensor


def inclusion_probabilities(scores: Tensor, count: float) -> Tensor:
    """The probability with which each row is drawn: in proportion to its score, at most 1, and `count` in all.

    Args:
        scores: 0 or more, flat; a row with score 0 is never drawn, so what it stands for must be 0.
        count: The number of rows to draw. Fewer are drawn where fewer have a score.
    """
    exact = scores.double()
    probabilities = exact * _share(count, exact)
    certain = 0
    for _ in range(_ROUNDS):
        full = probabilities >= 1
        known, certain = certain, int(full.sum())
        if certain == known:
            break
        share = _share(max(count - certain, 0.0), exact.masked_fill(full, 0))
        probabilities = torch.where(full, 1.0, exact * share)
    return probabilities.clamp_max_(1)


def _share(count: float, scores: Tensor) -> Tensor:
    """By what a score is multiplied so that all add up to `count`; 0 where there are none."""
    return (count / scores.sum()).nan_to_num_(nan=0.0, posinf=0.0)


def draw(probabilities: Tensor, start: float) -> Draw:
    """Draw rows systematically: where the running sum of the probabilities passes `start`, `start + 1` and so on.

    One random number draws all rows. Their number is fixed up to one, and neighbours, which are often alike, are
    seldom drawn together: both lower the variance.

    Args:
        probabilities: Of each row, flat.
        start: Uniform in [0, 1).
    """
    passed = (probabilities.cumsum(0) + (1 - start)).floor_()
    before = torch.cat([passed.new_full((1,), 0.0 if start else 1.0), passed[:-1]])
    rows = (passed > before).nonzero().flatten()
    return Draw(rows, 1 / probabilities[rows])
