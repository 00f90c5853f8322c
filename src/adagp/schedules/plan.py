"""Plan and schedule: which source supplies each layer's gradient in one batch, and in each batch.

A schedule maps a step (the number of batches done before this one) to a `Plan`. The same object drives training, the
accelerator model and the pipeline simulator, so asking for a plan never changes anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from numbers import Integral
from typing import Any

from adagp.quality import GradientAlignment
from adagp.schedules.sources import names
from adagp.schedules.trials import Trial

NO_OVERRIDES: Mapping[str, str] = {}


class Phase(Enum):
    """The name of a whole batch."""

    WARMUP = "WARMUP"
    BP = "BP"
    GP = "GP"


@dataclass(frozen=True)
class Plan:
    """For one batch, the source of every layer: `default`, unless `overrides` names the layer.

    `overrides` may also name a module without a source of its own, such as a batch norm: `backprop` or `skip`.
    `note` is a word for people, such as `4:1`. `scale` is the plan's fidelity: 1 is the full size of the samples, 0.5
    half of it. `rates` are the shares of positions that `sampled` draws, by layer; others get the source's own.
    With `trial_rates` it gives the exact gradient and tries these rates beside it, for `observe_trials`.
    """

    phase: Phase
    default: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    scale: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    trial_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a scale that is none."""
        if self.scale != 1.0:
            require_scale(self.scale)
        for layer, rate in self.rates.items():
            require(
                isinstance(rate, float | int) and 0 < rate <= 1,
                f"rates[{layer!r}] = {rate!r}",
                "it is a share of positions, above 0 and at most 1",
            )

    @property
    def is_coarse(self) -> bool:
        """Whether the samples are smaller than they could be."""
        return self.scale < 1

    def source(self, layer: str) -> str:
        """The source of a covered layer."""
        return self.overrides.get(layer, self.default)

    def source_of_uncovered(self, module: str) -> str:
        """What parameters that no source covers do: follow backpropagation where there is one, else rest."""
        return self.overrides.get(module, "skip" if self.phase is Phase.GP else "backprop")

    def used_sources(self) -> frozenset[str]:
        """Every source this plan names."""
        return frozenset({self.default, *self.overrides.values()})


WARMUP = Plan(Phase.WARMUP, "backprop", NO_OVERRIDES, "warm-up")
BACKPROP = Plan(Phase.BP, "backprop", NO_OVERRIDES, "BP")
LOCAL = Plan(Phase.BP, "local", NO_OVERRIDES, "local")


@dataclass(frozen=True)
class Probe:
    """What a full batch showed about smaller samples.

    Attributes:
        loss: The loss of the full batch.
        cosines: For each scale the cosine of its gradient with the full one, on the same samples.
    """

    loss: float
    cosines: Mapping[float, float]


class Schedule:
    """Base of all schedules: `step -> Plan`. Subclass it to remember something; any callable serves otherwise."""

    @cached_property
    def sources(self) -> frozenset[str]:
        """The sources this schedule may ask for; the engine keeps the history that `last` and `mean` need only then."""
        return names()

    @cached_property
    def scales(self) -> frozenset[float]:
        """The scales this schedule may ask for; a closure without an argument can only give 1."""
        return frozenset({1.0})

    def __call__(self, step: int) -> Plan:
        """The plan of one batch; never changes the schedule."""
        raise NotImplementedError

    def observe(self, step: int, alignments: Mapping[str, GradientAlignment]) -> None:
        """Called after every batch with how its predictions align with the true gradients; empty in GP."""

    def explain(self) -> list[str]:
        """Why the schedule changed its mind, a line for each change; empty for one that cannot."""
        return []

    @property
    def wants_probes(self) -> bool:
        """Whether `probe_scales` may ever give any."""
        return False

    def probe_scales(self, step: int) -> tuple[float, ...]:
        """The scales whose gradients are to be compared with the one of this full batch."""
        return ()

    def observe_probe(self, step: int, probe: Probe) -> None:
        """Called after a batch that was probed."""

    def observe_trials(self, step: int, trials: Mapping[str, Trial]) -> None:
        """Called after a batch whose plan has `trial_rates`, with what they showed of each layer."""

    @property
    def wants_order(self) -> bool:
        """Whether it still waits for `observe_order`."""
        return False

    def observe_order(self, names: Sequence[str]) -> None:
        """Take in the order in which the first batch called the modules with parameters."""

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


def from_function(function: Callable[[int], Plan], sources: Sequence[str] | None = None) -> Schedule:
    """Make a schedule of any callable `step -> Plan`.

    Naming the `sources` it may ask for saves memory: `last` and `mean` each keep one copy of the weights' gradients.
    """
    return FunctionSchedule(function, names() if sources is None else frozenset(sources))


def always_backprop() -> Schedule:
    """Plain backpropagation in every batch."""
    return from_function(lambda step: BACKPROP, sources=["backprop"])


def always_local() -> Schedule:
    """Local losses in every batch: each part of the network learns from a head of its own; see `sources.Local`."""
    return from_function(lambda step: LOCAL, sources=["local"])


class Repeating(Schedule):
    """A cycle of plans that repeats forever."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        """`plans` are made once; a step only looks one up."""
        self.plans = tuple(plans)
        self.sources = frozenset({"backprop"}).union(*(plan.used_sources() for plan in self.plans))
        self.scales = frozenset(plan.scale for plan in self.plans)

    def __call__(self, step: int) -> Plan:
        """The plan whose turn it is."""
        return self.plans[step % len(self.plans)]


def require_scale(scale: float) -> None:
    """Refuse a scale that is not the fraction of a size."""
    if not isinstance(scale, float | int) or not 0 < scale <= 1:
        raise ValueError(f"scale = {scale!r}: it is a fraction of the samples' size, above 0 and at most 1")


def require_whole(argument: str, number: object) -> None:
    """Refuse a count that is no whole number."""
    require(isinstance(number, Integral), argument, f"must be a whole number, not {number!r}")


def require(holds: bool, argument: str, remedy: str) -> None:
    """Refuse an argument by name."""
    if not holds:
        raise ValueError(f"{argument}: {remedy}")
