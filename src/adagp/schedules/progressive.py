"""Progressive resizing: small samples first, full size at the end.

Relatives: progressive resizing (Composer's method of that name), Mix & Match (Hoffer et al., arXiv 1908.08986), which
trains on mixed sizes, and FixRes (Touvron et al., arXiv 1906.06423), on why the sizes of training and testing must
agree at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.schedules.plan import NO_OVERRIDES, Phase, Plan, Schedule, require, require_scale, require_whole


@dataclass(frozen=True)
class Progressive(Schedule):
    """True gradients in every batch, of samples that grow level by level; the last level never ends.

    Attributes:
        levels: The scale of each level, and the step at which it ends.
    """

    levels: tuple[tuple[float, int], ...]

    @property
    def sources(self) -> frozenset[str]:
        """Backpropagation alone."""
        return frozenset({"backprop"})

    @property
    def scales(self) -> frozenset[float]:
        """The scales of the levels."""
        return frozenset(scale for scale, _ in self.levels)

    def __call__(self, step: int) -> Plan:
        """A BP batch at the scale of its level."""
        return _plan(next((scale for scale, end in self.levels if step < end), self.levels[-1][0]))

    def plan_shares(self) -> list[tuple[Plan, float]]:
        """The plan of every level, with its share of the steps."""
        ends = [end for _, end in self.levels]
        lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        return [(_plan(scale), length / ends[-1]) for (scale, _), length in zip(self.levels, lengths, strict=True)]


def progressive(steps: int, levels: Sequence[tuple[float, float]] = ((0.5, 0.6), (1.0, 0.4))) -> Progressive:
    """Train on small samples first: backpropagation at a fraction of the work.

    Args:
        steps: The number of batches of the whole training, over which the learning rate decays too.
        levels: Pairs of a scale and its share of the steps, in order. The shares add up to 1; the last scale is 1.
    """
    require_whole("steps", steps)
    require(steps > 0, "steps", "must be at least 1; is the loader empty?")
    require(len(levels) > 0, "levels", "needs at least one (scale, share) pair")
    for level in levels:
        require(isinstance(level, Sequence) and len(level) == 2, "levels", f"{level!r} is no (scale, share) pair")
        scale, share = level
        require_scale(scale)
        is_share = isinstance(share, float | int) and share > 0
        require(is_share, "levels", f"({scale}, {share}): the share of the steps must be positive")
    total, last = sum(share for _, share in levels), levels[-1][0]
    require(abs(total - 1) < 1e-6, "levels", f"the shares add up to {total:g}: they must add up to 1")
    require(last == 1, "levels", f"end with scale {last:g}: end with full size, at which the model is tested")
    ends, before = [], 0.0
    for _, share in levels[:-1]:
        before += share
        ends.append(min(round(before * steps), steps - 1))  # however short, a run ends at full size
    return Progressive(tuple((float(scale), end) for (scale, _), end in zip(levels, [*ends, steps], strict=True)))


def _plan(scale: float) -> Plan:
    return Plan(Phase.BP, "backprop", NO_OVERRIDES, f"x{scale:g}", scale)
