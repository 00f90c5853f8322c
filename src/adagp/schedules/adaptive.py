"""A schedule that predicts as often as its measured quality allows."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from adagp.quality import GradientAlignment, overall_cosine
from adagp.schedules.plan import NO_OVERRIDES, WARMUP, Phase, Plan, Schedule, require


class Adaptive(Schedule):
    """Sets k by what predictions were worth in the last BP batches; see `adaptive`."""

    sources = frozenset({"backprop", "predicted", "skip"})

    def __init__(self, warmup_steps: int, max_k: int, patience: int, decay: float) -> None:
        """See `adaptive` for the arguments."""
        self.warmup_steps = warmup_steps
        self.max_k = max_k
        self.patience = patience
        self.decay = decay
        self._k = 0
        self._cycle_start = warmup_steps
        self._cycles = 0
        self._overall = _Running()
        self._layers: dict[str, _Running] = {}
        self._log: deque[str] = deque(maxlen=200)

    def __call__(self, step: int) -> Plan:
        """The plan under the k in force; a layer whose predictions point the wrong way rests in GP."""
        if step < self.warmup_steps:
            return WARMUP
        note = f"{self._k}:1"
        if (step - self._cycle_start) % (self._k + 1) < self._k:
            resting = {name: "skip" for name, running in self._layers.items() if running.mean <= 0}
            return Plan(Phase.GP, "predicted", resting, note)
        return Plan(Phase.BP, "backprop", NO_OVERRIDES, note)

    def observe(self, step: int, alignments: Mapping[str, GradientAlignment]) -> None:
        """Take in the cosines of a batch with true gradients, and decide at the end of every `patience`-th cycle."""
        if alignments:
            self._overall.add(overall_cosine(alignments), self.decay)
            for name, alignment in alignments.items():
                self._layers.setdefault(name, _Running()).add(alignment.cosine, self.decay)
        if step < self.warmup_steps or step - self._cycle_start < self._k:
            return
        self._cycle_start = step + 1
        self._cycles += 1
        if self._cycles % self.patience == 0:
            self._decide(step)

    def _decide(self, step: int) -> None:
        mean, error = self._overall.mean, self._overall.error(self.decay)
        if mean <= 0:
            k, why = 0, "predictions are no better than nothing: back to BP"
        elif mean - error > 0:
            k, why = min(self._k + 1, self.max_k), "predictions point the right way"
        else:
            k, why = max(self._k - 1, 0), "predictions cannot be distinguished from noise"
        if k != self._k:
            resting = sum(running.mean <= 0 for running in self._layers.values())
            self._log.append(
                f"step {step}: {self._k}:1 -> {k}:1, {why} (cosine {mean:+.3f} +- {error:.3f}; "
                f"{resting} of {len(self._layers)} layers rest in GP)"
            )
        self._k = k

    def explain(self) -> list[str]:
        """Why k:m changed, a line for each of the last changes."""
        return list(self._log)

    def state_dict(self) -> dict[str, Any]:
        """K, the running cosines, and the log."""
        return {
            "k": self._k,
            "cycle_start": self._cycle_start,
            "cycles": self._cycles,
            "overall": self._overall.as_list(),
            "layers": {name: running.as_list() for name, running in self._layers.items()},
            "log": list(self._log),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._k, self._cycle_start, self._cycles = state["k"], state["cycle_start"], state["cycles"]
        self._overall = _Running(*state["overall"])
        self._layers = {name: _Running(*values) for name, values in state["layers"].items()}
        self._log = deque(state["log"], maxlen=self._log.maxlen)


@dataclass
class _Running:
    """Running mean and variance of a figure."""

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0

    def add(self, value: float, decay: float) -> None:
        weight = max(1 - decay, 1 / (self.count + 1))
        delta = value - self.mean
        self.mean += weight * delta
        self.variance = (1 - weight) * (self.variance + weight * delta * delta)
        self.count += 1

    def error(self, decay: float) -> float:
        """Standard error of the running mean, as if batches were independent."""
        effective = min(self.count, (1 + decay) / (1 - decay))
        return sqrt(self.variance / effective) if effective else 0.0

    def as_list(self) -> list[float]:
        return [self.mean, self.variance, self.count]


def adaptive(
    steps_per_epoch: int, warmup_epochs: float = 10, max_k: int = 4, patience: int = 4, decay: float = 0.9
) -> Adaptive:
    """A schedule that sets k:1 by the measured quality of the predictions.

    Every `patience` cycles it looks at the running cosine of the whole model's prediction with the true gradient, and
    at its standard error. Clearly above 0: one GP batch more per BP batch, up to `max_k`. Not clearly: one less.
    At or below 0: BP only, until it recovers; the predictor goes on learning meanwhile. A layer whose own running
    cosine is not positive rests (`skip`) in GP batches. `decay` weighs the past in the running figures.
    """
    require(steps_per_epoch > 0, "steps_per_epoch", "must be at least 1; is the loader empty?")
    require(warmup_epochs >= 0, "warmup_epochs", "must not be negative")
    require(max_k > 0, "max_k", "must be at least 1")
    require(patience > 0, "patience", "must be at least 1")
    require(0 < decay < 1, "decay", "must lie between 0 and 1")
    return Adaptive(round(warmup_epochs * steps_per_epoch), max_k, patience, decay)
