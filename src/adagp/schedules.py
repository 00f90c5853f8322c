"""Schedules: which source supplies each layer's gradient in each batch.

A schedule maps a step (the number of batches done before this one) to a `Plan`. The same object drives training, the
accelerator model and the pipeline simulator, so asking for a plan never changes anything.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import sqrt
from typing import Any

from adagp.quality import Agreement, overall_cosine

SOURCES = frozenset({"backprop", "predicted", "last", "mean", "zero", "skip"})
_NO_OVERRIDES: Mapping[str, str] = {}


class Phase(Enum):
    """The name of a whole batch."""

    WARMUP = "WARMUP"
    BP = "BP"
    GP = "GP"


@dataclass(frozen=True)
class Plan:
    """For one batch, the source of every layer: `default`, unless `overrides` names the layer.

    `overrides` may also name a module without a source of its own, such as a batch norm: `backprop` or `skip`.
    `note` is a word for people, such as `4:1`.
    """

    phase: Phase
    default: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def source(self, layer: str) -> str:
        """The source of a covered layer."""
        return self.overrides.get(layer, self.default)

    def source_of_uncovered(self, module: str) -> str:
        """What parameters that no source covers do: follow backpropagation where there is one, else rest."""
        return self.overrides.get(module, "skip" if self.phase is Phase.GP else "backprop")

    def used_sources(self) -> frozenset[str]:
        """Every source this plan names."""
        return frozenset({self.default, *self.overrides.values()})


_WARMUP = Plan(Phase.WARMUP, "backprop", _NO_OVERRIDES, "warm-up")
_BACKPROP = Plan(Phase.BP, "backprop", _NO_OVERRIDES, "BP")


class Schedule:
    """Base of all schedules: `step -> Plan`. Subclass it to remember something; any callable serves otherwise."""

    sources: frozenset[str] = SOURCES
    """The sources this schedule may ask for; the engine keeps the history that `last` and `mean` need only then."""

    def __call__(self, step: int) -> Plan:
        """The plan of one batch; never changes the schedule."""
        raise NotImplementedError

    def observe(self, step: int, agreements: Mapping[str, Agreement]) -> None:
        """Told after every batch how predictions compared with the truth; empty where there was no truth."""

    def state_dict(self) -> dict[str, Any]:
        """What the schedule has learned, in plain types."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""


class FunctionSchedule(Schedule):
    """A user's callable as a schedule."""

    def __init__(self, function: Callable[[int], Plan], sources: frozenset[str]) -> None:
        """`sources` are those the callable may ask for."""
        self._function = function
        self.sources = sources

    def __call__(self, step: int) -> Plan:
        """The callable's plan."""
        plan = self._function(step)
        if not isinstance(plan, Plan):
            raise TypeError(f"schedule at step {step} returned {type(plan).__name__}; it must return an adagp.Plan")
        return plan


def from_function(function: Callable[[int], Plan], sources: Sequence[str] = tuple(sorted(SOURCES))) -> Schedule:
    """Make a schedule of any callable `step -> Plan`.

    Naming the `sources` it may ask for saves memory: `last` and `mean` each keep one copy of the weights' gradients.
    """
    return FunctionSchedule(function, frozenset(sources))


def always_backprop() -> Schedule:
    """Plain backpropagation in every batch."""
    return from_function(lambda step: _BACKPROP, sources=["backprop"])


@dataclass(frozen=True)
class Ladder(Schedule):
    """A warm-up and then rungs of k GP batches followed by m BP batches; the last rung lasts for ever."""

    warmup_steps: int
    rung_steps: int
    rungs: tuple[tuple[int, int], ...]
    source: str

    def __post_init__(self) -> None:
        """Refuse numbers that make no schedule."""
        _require(self.warmup_steps >= 0, "warmup_epochs", "must not be negative")
        _require(len(self.rungs) > 0, "rungs", "needs at least one (k, m) pair")
        _require(self.rung_steps > 0 or len(self.rungs) == 1, "rung_epochs", "must give each rung at least one step")
        for k, m in self.rungs:
            _require(k >= 0 and m >= 0 and k + m > 0, "rungs", f"({k}, {m}) must not be negative or both zero")
        if self.source not in SOURCES:
            raise ValueError(f"source={self.source!r} is unknown; known sources: {', '.join(sorted(SOURCES))}")

    @property
    def sources(self) -> frozenset[str]:  # type: ignore[override]
        """Backpropagation and the source of the GP batches."""
        return frozenset({"backprop", self.source})

    def __call__(self, step: int) -> Plan:
        """GP first, then BP, in every cycle of a rung."""
        if step < self.warmup_steps:
            return _WARMUP
        after = step - self.warmup_steps
        rung = min(after // self.rung_steps, len(self.rungs) - 1) if len(self.rungs) > 1 else 0
        k, m = self.rungs[rung]
        note = f"{k}:{m}"
        if (after - rung * self.rung_steps) % (k + m) < k:
            return Plan(Phase.GP, self.source, _NO_OVERRIDES, note)
        return Plan(Phase.BP, "backprop", _NO_OVERRIDES, note)


def ladder(
    steps_per_epoch: int,
    warmup_epochs: float = 10,
    rung_epochs: float = 4,
    rungs: Sequence[tuple[int, int]] = ((4, 1), (3, 1), (2, 1), (1, 1)),
    source: str = "predicted",
) -> Ladder:
    """ADA-GP's schedule (section 3.5): true gradients first, then k:m = 4:1, 3:1 and 2:1 for 4 epochs each, then 1:1.

    Epochs may be fractions, so that the ladder can be compressed. `source` is what the GP batches use.
    """
    _require(steps_per_epoch > 0, "steps_per_epoch", "must be at least 1; is the loader empty?")
    return Ladder(
        warmup_steps=round(warmup_epochs * steps_per_epoch),
        rung_steps=round(rung_epochs * steps_per_epoch),
        rungs=tuple((int(k), int(m)) for k, m in rungs),
        source=source,
    )


def fixed(k: int, m: int, source: str = "predicted") -> Ladder:
    """K GP batches, then m BP batches, for ever, without a warm-up."""
    return Ladder(warmup_steps=0, rung_steps=1, rungs=((k, m),), source=source)


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
            return _WARMUP
        note = f"{self._k}:1"
        if (step - self._cycle_start) % (self._k + 1) < self._k:
            resting = {name: "skip" for name, seen in self._layers.items() if seen.mean <= 0}
            return Plan(Phase.GP, "predicted", resting, note)
        return Plan(Phase.BP, "backprop", _NO_OVERRIDES, note)

    def observe(self, step: int, agreements: Mapping[str, Agreement]) -> None:
        """Take in the cosines of a batch with true gradients, and decide at the end of every `patience`-th cycle."""
        if agreements:
            self._overall.add(overall_cosine(agreements), self.decay)
            for name, seen in agreements.items():
                self._layers.setdefault(name, _Running()).add(seen.cosine, self.decay)
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
            k, why = max(self._k - 1, 0), "predictions cannot be told from noise"
        if k != self._k:
            resting = sum(seen.mean <= 0 for seen in self._layers.values())
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
            "layers": {name: seen.as_list() for name, seen in self._layers.items()},
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
    at its standard error. Clearly above 0: one GP batch more per BP batch, up to `max_k`. Not told from 0: one less.
    At or below 0: BP only, until it recovers; the predictor goes on learning meanwhile. A layer whose own running
    cosine is not positive rests (`skip`) in GP batches. `decay` weighs the past in the running figures.
    """
    _require(steps_per_epoch > 0, "steps_per_epoch", "must be at least 1; is the loader empty?")
    _require(max_k > 0, "max_k", "must be at least 1")
    _require(patience > 0, "patience", "must be at least 1")
    _require(0 < decay < 1, "decay", "must lie between 0 and 1")
    return Adaptive(round(warmup_epochs * steps_per_epoch), max_k, patience, decay)


def _require(holds: bool, argument: str, remedy: str) -> None:
    if not holds:
        raise ValueError(f"{argument}: {remedy}")
