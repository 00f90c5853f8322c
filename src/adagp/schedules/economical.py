"""A schedule that samples weight gradients only where measurements say that it pays."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from adagp.schedules.plan import BACKPROP, Phase, Plan, Schedule, require
from adagp.schedules.trials import Finding, Trial, best, findings


class Economical(Schedule):
    """Measures, decides layer by layer, and measures again from time to time; see `economical`."""

    sources = frozenset({"backprop", "sampled"})

    def __init__(
        self, layers: Sequence[str], rates: Sequence[float], measured_batches: int, first: int, every: int
    ) -> None:
        """See `economical` for the arguments."""
        self._layers, self._rates = tuple(layers), tuple(float(rate) for rate in rates)
        self._measured_batches, self._first, self._every = measured_batches, first, every
        self._trials: dict[str, list[Trial]] = {}
        self._chosen: dict[str, float] = {}
        self._log: deque[str] = deque(maxlen=200)

    def __call__(self, step: int) -> Plan:
        """Exact at first; then some measured batches, which are exact too; then the layers that pay are sampled."""
        if step < self._first:
            return BACKPROP
        if self._is_measured(step):
            return Plan(
                Phase.BP, "backprop", dict.fromkeys(self._layers, "sampled"), "measured", trial_rates=self._rates
            )
        return Plan(
            Phase.BP, "backprop", dict.fromkeys(self._chosen, "sampled"), "economical", rates=dict(self._chosen)
        )

    def _is_measured(self, step: int) -> bool:
        return step >= self._first and (step - self._first) % self._every < self._measured_batches

    @property
    def rates(self) -> Mapping[str, float]:
        """The rates of the layers that are sampled now; all others are exact."""
        return dict(self._chosen)

    def findings(self) -> dict[str, list[Finding]]:
        """What the last measurements say about each layer and rate."""
        return {layer: findings(trials) for layer, trials in self._trials.items()}

    def observe_trials(self, step: int, trials: Mapping[str, Trial]) -> None:
        """Take in what a measured batch showed, and decide after the last of them."""
        place = (step - self._first) % self._every
        if place == 0:
            self._trials = {}
        for layer, trial in trials.items():
            kept = self._trials.setdefault(layer, [])
            if trial.is_finite:
                kept.append(trial)
        if place == self._measured_batches - 1:
            for layer, found in self.findings().items():
                self._log.append(f"step {step}: {self._decide(layer, found)}")

    def _decide(self, layer: str, found: Sequence[Finding]) -> str:
        """Choose the rate of a layer; returns what was decided, and why."""
        if not found:
            now = f"stays sampled at {self._chosen[layer]:g}" if layer in self._chosen else "exact"
            return f"{layer} {now}: fewer than two measured batches in a row had finite gradients"
        chosen = best(found)
        if chosen is None:
            self._chosen.pop(layer, None)
        else:
            self._chosen[layer] = chosen.rate
        return f"{layer} {_reason(found, chosen)}"

    def explain(self) -> list[str]:
        """Why each layer is sampled or exact, a line for each layer and decision."""
        return list(self._log)

    def state_dict(self) -> dict[str, Any]:
        """The measured table, the rates in force, and the log."""
        trials = {layer: [asdict(trial) for trial in ones] for layer, ones in self._trials.items()}
        return {"trials": trials, "chosen": dict(self._chosen), "log": list(self._log)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._trials = {layer: [Trial(**trial) for trial in ones] for layer, ones in state["trials"].items()}
        self._chosen = dict(state["chosen"])
        self._log = deque(state["log"], maxlen=self._log.maxlen)


def economical(
    layers: Sequence[str],
    rates: Sequence[float] = (0.1, 0.25, 0.5),
    *,
    measured_batches: int = 4,
    first: int = 20,
    every: int = 500,
) -> Economical:
    """Sample the weight gradients of the layers for which that pays, each at its best rate; all others are exact.

    In a measured batch every gradient is exact. Beside it each layer is sampled at every rate, and timed. A layer is
    then sampled if the variance that this adds, over that between batches, is below the break-even for the time it
    saves. Decisions depend on nothing but the measured table, which is saved.

    Args:
        layers: Those that may be sampled, Conv1d, Conv2d and Linear; see `layer_names`.
        rates: The shares of positions to try.
        measured_batches: How many successive batches are measured before a decision. Each takes the time of two or
            three.
        first: The step of the first of them. The first weights mislead.
        every: Batches from one measurement to the next, because gradients change while training.
    """
    require(len(layers) > 0, "layers", "there are none: take them from schedules.layer_names(model)")
    require(len(rates) > 0, "rates", "needs at least one share of positions")
    for rate in rates:
        require(
            isinstance(rate, float | int) and 0 < rate < 1, f"rates: {rate!r}", "it is a share, above 0 and below 1"
        )
    require(measured_batches >= 2, "measured_batches", "must be at least 2, to see how batches differ")
    require(first >= 0, "first", "must be 0 or more")
    require(every > measured_batches, "every", "must be above measured_batches")
    return Economical(layers, rates, measured_batches, first, every)


def _reason(found: Sequence[Finding], chosen: Finding | None) -> str:
    """What was decided of a layer, and by which figures."""
    if chosen is None:
        nearest = max(found, key=lambda one: one.worth)
        if nearest.saved <= 0:
            return "exact: sampling saves no time at any rate"
        if nearest.pays:
            return f"exact: a rate of {nearest.rate:g} would gain {100 * (nearest.worth - 1):.1f} %, too little"
        return (
            f"exact: even a rate of {nearest.rate:g} adds {nearest.added_variance:.2f} of the variance between "
            f"batches, and its time pays for {nearest.most_added_variance:.2f}"
        )
    return (
        f"sampled at {chosen.rate:g}: adds {chosen.added_variance:.2f} of the variance between batches, below "
        f"{chosen.most_added_variance:.2f}, and saves {100 * chosen.saved:.0f} % of the layer's time"
    )
