"""ADA-GP's ladder: GP batches in a fixed rhythm, fewer and fewer of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from adagp.schedules.plan import NO_OVERRIDES, WARMUP, Phase, Plan, Schedule, require, require_scale, require_whole
from adagp.schedules.sources import spec

COARSE = "coarse"
"""What may stand in for a source: the cheap batches are BP batches of smaller samples."""


@dataclass(frozen=True)
class Ladder(Schedule):
    """A warm-up and then rungs of k cheap batches followed by m BP batches; the last rung never ends.

    The cheap batches are GP batches with `source`, or, for `coarse`, BP batches at `scale`.
    """

    warmup_steps: int
    rung_steps: int
    rungs: tuple[tuple[int, int], ...]
    source: str
    scale: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers that make no schedule."""
        require(self.warmup_steps >= 0, "warmup_epochs", "must not be negative")
        require(len(self.rungs) > 0, "rungs", "needs at least one (k, m) pair")
        require(self.rung_steps > 0 or len(self.rungs) == 1, "rung_epochs", "must give each rung at least one step")
        for k, m in self.rungs:
            are_whole = isinstance(k, Integral) and isinstance(m, Integral)
            require(are_whole, "rungs", f"({k}, {m}) must be whole numbers")
            require(k >= 0 and m >= 0 and k + m > 0, "rungs", f"({k}, {m}) must not be negative or both zero")
        require_scale(self.scale)
        require(
            self.source == COARSE or not spec(self.source).needs_backward,
            "source",
            f"{self.source} needs a backward, and a GP batch has none: use schedules.approximate",
        )

    @property
    def sources(self) -> frozenset[str]:
        """Backpropagation and the source of the GP batches."""
        return frozenset({"backprop"} if self.source == COARSE else {"backprop", self.source})

    @property
    def scales(self) -> frozenset[float]:
        """Full size, and that of the coarse batches."""
        return frozenset({1.0, self.scale} if self.source == COARSE else {1.0})

    def __call__(self, step: int) -> Plan:
        """GP first, then BP, in every cycle of a rung."""
        if step < self.warmup_steps:
            return WARMUP
        after = step - self.warmup_steps
        rung = min(after // self.rung_steps, len(self.rungs) - 1) if len(self.rungs) > 1 else 0
        k, m = self.rungs[rung]
        note = f"{k}:{m}"
        if (after - rung * self.rung_steps) % (k + m) < k:
            if self.source == COARSE:
                return Plan(Phase.BP, "backprop", NO_OVERRIDES, note, self.scale)
            return Plan(Phase.GP, self.source, NO_OVERRIDES, note)
        return Plan(Phase.BP, "backprop", NO_OVERRIDES, note)


def ladder(
    steps_per_epoch: int,
    warmup_epochs: float = 10,
    rung_epochs: float = 4,
    rungs: Sequence[tuple[int, int]] = ((4, 1), (3, 1), (2, 1), (1, 1)),
    source: str = "predicted",
    scale: float = 0.5,
) -> Ladder:
    """ADA-GP's schedule (section 3.5): true gradients first, then k:m = 4:1, 3:1 and 2:1 for 4 epochs each, then 1:1.

    Epochs may be fractions, so that the ladder can be compressed. `source` is what the GP batches use; with `coarse`
    they are BP batches instead, of the same samples at `scale` times their size.
    """
    require_whole("steps_per_epoch", steps_per_epoch)
    require(steps_per_epoch > 0, "steps_per_epoch", "must be at least 1; is the loader empty?")
    return Ladder(
        warmup_steps=round(warmup_epochs * steps_per_epoch),
        rung_steps=round(rung_epochs * steps_per_epoch),
        rungs=tuple((k, m) for k, m in rungs),
        source=source,
        scale=scale,
    )


def fixed(k: int, m: int, source: str = "predicted", scale: float = 0.5) -> Ladder:
    """K GP batches (or coarse ones), then m BP batches, repeated forever, without a warm-up."""
    return Ladder(warmup_steps=0, rung_steps=1, rungs=((k, m),), source=source, scale=scale)
