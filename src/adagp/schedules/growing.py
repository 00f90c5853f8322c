"""A progressive schedule that measures when larger samples pay, and moves on by itself."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from adagp.schedules.plan import NO_OVERRIDES, Phase, Plan, Probe, Schedule, require, require_scale, require_whole

_DECAY = 0.7
"""Weight of the past in the running cosines: they stand for about the last three probes."""


@dataclass
class _Level:
    """What the probes found out about one scale.

    Attributes:
        scale: The scale.
        cosine: The running cosine of its gradient with that of the full size, on the same samples.
        probes: The number of probes.
        losses: The losses of the last full batches while it was in use, the oldest first.
    """

    scale: float
    cosine: float = 0.0
    probes: int = 0
    losses: list[float] = field(default_factory=list)

    def worth(self, dimensions: int) -> float:
        """The progress of a step per unit of work, that of the full size being 1.

        A step along a gradient with cosine c makes c^2 of the progress, and takes scale^dimensions of the work.
        """
        return self.cosine**2 / self.scale**dimensions

    def add(self, cosine: float) -> None:
        weight = max(1 - _DECAY, 1 / (self.probes + 1))
        self.cosine += weight * (cosine - self.cosine)
        self.probes += 1


class Growing(Schedule):
    """Goes from small samples to the full size; see `growing`."""

    sources = frozenset({"backprop"})

    def __init__(
        self, steps: int, scales: Sequence[float], probe_every: int, patience: int, last_share: float, dimensions: int
    ) -> None:
        """See `growing` for the arguments."""
        self._steps, self._probe_every, self._patience = steps, probe_every, patience
        self._dimensions = dimensions
        self._last_steps = round(last_share * steps)
        self._levels = [_Level(float(scale)) for scale in scales]
        self._level = 0
        self._log: deque[str] = deque(maxlen=200)

    @property
    def scales(self) -> frozenset[float]:
        """Those of all levels."""
        return frozenset(level.scale for level in self._levels)

    def __call__(self, step: int) -> Plan:
        """A BP batch at the scale in force; one at full size where it is probed, and at the end."""
        is_full = step >= self._steps - self._last_steps or bool(self.probe_scales(step))
        scale = 1.0 if is_full else self._levels[self._level].scale
        return Plan(Phase.BP, "backprop", NO_OVERRIDES, f"x{scale:g}", scale)

    @property
    def wants_probes(self) -> bool:
        """Always."""
        return True

    def probe_scales(self, step: int) -> tuple[float, ...]:
        """The scale in force and the next, in every `probe_every`-th batch."""
        is_last = self._level == len(self._levels) - 1 or step >= self._steps - self._last_steps
        if is_last or (step + 1) % self._probe_every:
            return ()
        return tuple(level.scale for level in self._levels[self._level : self._level + 2] if level.scale < 1)

    def observe_probe(self, step: int, probe: Probe) -> None:
        """Take in how the gradients of smaller samples agree with the full one, and move on where that pays."""
        if not all(map(isfinite, (probe.loss, *probe.cosines.values()))):
            return  # an overflow under a GradScaler, say
        here, following = self._levels[self._level : self._level + 2]
        for level in (here, following):
            level.add(probe.cosines.get(level.scale, 1.0))
        here.losses = [*here.losses, probe.loss][-2 * self._patience :]
        if here.probes < self._patience:
            return
        reason = self._reason(here, following)
        if reason:
            self._log.append(
                f"step {step}: x{here.scale:g} -> x{following.scale:g}, {reason} (cosine {here.cosine:.2f} at "
                f"x{here.scale:g}, {following.cosine:.2f} at x{following.scale:g}; loss {probe.loss:.3f})"
            )
            self._level += 1

    def _reason(self, here: _Level, following: _Level) -> str:
        gain, present = following.worth(self._dimensions), here.worth(self._dimensions)
        if gain > present:
            return f"larger samples make {gain / present:.2f} x the progress per unit of work"
        older, newer = here.losses[: -self._patience], here.losses[-self._patience :]
        if len(older) == self._patience and sum(newer) >= sum(older):
            return "the loss at full size falls no longer"
        return ""

    def explain(self) -> list[str]:
        """Why the scale changed, a line for each change."""
        return list(self._log)

    def state_dict(self) -> dict[str, Any]:
        """The level, what the probes found, and the log."""
        return {"level": self._level, "levels": [asdict(level) for level in self._levels], "log": list(self._log)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._level = state["level"]
        self._levels = [_Level(**{**level, "losses": list(level["losses"])}) for level in state["levels"]]
        self._log = deque(state["log"], maxlen=self._log.maxlen)


def growing(
    steps: int,
    scales: Sequence[float] = (0.5, 0.75, 1.0),
    probe_every: int = 25,
    patience: int = 3,
    last_share: float = 0.2,
    dimensions: int = 2,
) -> Growing:
    """A progressive schedule that decides by measurement when samples grow.

    Every `probe_every` batches one runs at full size. The gradients of the same samples at the present scale and at the
    next are compared with it. Samples grow when the next scale would make more progress per unit of work, or when
    the loss at full size falls no longer.

    Args:
        steps: The number of batches of the whole training.
        scales: From small to 1.
        probe_every: Batches from one probe to the next. A probe costs one full batch and up to two coarse ones.
        patience: Probes before a decision.
        last_share: The share of the steps at the end that always runs at full size.
        dimensions: Of a sample that shrink with the scale: 2 for images, 1 for sequences. A batch takes
            `scale ** dimensions` of the work.
    """
    for argument, number in (("steps", steps), ("probe_every", probe_every), ("patience", patience)):
        require_whole(argument, number)
    require(steps > 0, "steps", "must be at least 1; is the loader empty?")
    require(len(scales) > 1, "scales", "needs at least two, from small to 1")
    for scale in scales:
        require_scale(scale)
    require(list(scales) == sorted(set(scales)) and scales[-1] == 1, "scales", "must grow, and end with 1")
    require(probe_every > 1, "probe_every", "must be at least 2")
    require(patience > 0, "patience", "must be at least 1")
    require(0 < last_share <= 1, "last_share", "must be above 0 and at most 1")
    require(dimensions > 0, "dimensions", "must be at least 1")
    return Growing(steps, scales, probe_every, patience, last_share, dimensions)
