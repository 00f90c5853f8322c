"""What a batch of each kind costs under each method, measured side by side before a comparison starts."""

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import torch

from adagp import Plan
from adagp.data import AnyDataSet
from adagp.schedules import Repeating
from adagp.training import methods
from adagp.training.interrupt import Interrupt
from adagp.training.loop import Run
from adagp.training.methods import Planning
from adagp.training.observers import Observer
from adagp.training.planning import batch_kind, build_schedule, plan_shares, recipe_outline
from adagp.training.recipe import Recipe

# The first rounds meet cold caches and an optimizer without state; they are trained but not timed.
WARM_ROUNDS = 3
# At least so many timed rounds, and more while they are quick, because medians of few short batches are noisy.
TIMED_ROUNDS = 9
MOST_TIMED_ROUNDS = 41
LONGEST_SECONDS = 4.0
# The copies hardly move: a batch costs the same, and a rate that makes a method diverge does not stop the measurement.
RESTING_LR = 1e-6
# A run so long that all rungs of the ladder have room.
FAR = 10_000


@dataclass(frozen=True)
class Calibration:
    """Median seconds and peak bytes of one batch, by method and kind of batch (`BP`, `MIXED`, `GP`).

    Stored with a comparison, so that a resumed one computes the same number of batches for every method.
    """

    seconds: dict[str, dict[str, float]]
    peak_bytes: dict[str, dict[str, int]]
    statistic: str = "median"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `calibration.json`."""
        return {"statistic": self.statistic, "seconds": self.seconds, "peak_bytes": self.peak_bytes}

    @classmethod
    def from_dict(cls, values: dict[str, Any], names: tuple[str, ...]) -> Self:
        """Undo `to_dict`.

        Raises:
            ValueError: When there are not, for each of the methods, seconds and bytes that can be.
        """
        if values.keys() != {"statistic", "seconds", "peak_bytes"} or not isinstance(values["statistic"], str):
            raise ValueError("it has other parts")
        for part in ("seconds", "peak_bytes"):
            for name in names:
                costs = values[part].get(name) if isinstance(values[part], dict) else None
                if not isinstance(costs, dict) or not costs or not all(map(_is_cost, costs.values())):
                    raise ValueError(f"{part} of {name} are missing or no such numbers")
        if not all(sum(values["seconds"][name].values()) for name in names):
            raise ValueError("a method takes no time")
        return cls(**values)


def _is_cost(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")  # type: ignore[operator]


def calibrate(
    recipe: Recipe,
    names: tuple[str, ...],
    dataset: AnyDataSet,
    *,
    device: torch.device,
    observer: Observer,
    interrupt: Interrupt,
) -> Calibration:
    """Train throw-away copies of the first seed's run, one batch of each plan of each method in turn.

    Turn by turn, because a machine's speed drifts: whatever slows one method down slows down all of them.
    """
    observer.on_message("measuring what a batch costs under each method")
    # short-bp does what bp does: one measurement, so that noise cannot make them differ.
    measured = tuple(dict.fromkeys("bp" if name == "short-bp" else name for name in names))
    runs: dict[str, Run] = {}
    shares: dict[str, list[tuple[Plan, float]]] = {}
    for name in measured:
        chosen = recipe.replace(method=name, lr=RESTING_LR)
        shares[name] = _plan_shares(chosen)
        cycle = Repeating([plan for plan, _ in shares[name]])
        runs[name] = Run(chosen, dataset, device=device, schedule=cycle)
    times: dict[str, list[list[float]]] = {name: [[] for _ in shares[name]] for name in measured}
    turn, spent = 0, 0.0
    while turn < WARM_ROUNDS + TIMED_ROUNDS or (spent < LONGEST_SECONDS and turn < WARM_ROUNDS + MOST_TIMED_ROUNDS):
        for name in _rotated(measured, turn):
            for of_plan in times[name]:
                interrupt.check()
                event = runs[name].step()
                spent += event.seconds
                if turn >= WARM_ROUNDS:
                    of_plan.append(event.seconds)
        turn += 1
    seconds = {name: _by_kind(shares[name], [median(of_plan) for of_plan in times[name]]) for name in measured}
    peaks = {name: _peaks(runs[name], shares[name]) for name in measured}
    for run in runs.values():
        run.gp.remove()
    if "short-bp" in names:
        seconds["short-bp"], peaks["short-bp"] = seconds["bp"], peaks["bp"]
    return Calibration(seconds, peaks, f"median of {turn - WARM_ROUNDS} batches of each plan, methods in turn")


def _plan_shares(recipe: Recipe) -> list[tuple[Plan, float]]:
    """Each plan that the recipe's runs follow after their warm-up, to time all of them within a few batches."""
    schedule = build_schedule(_estimated(recipe), recipe_outline(recipe), FAR, FAR)
    return plan_shares(schedule, recipe.ladder(FAR, FAR).warmup_steps)


def _by_kind(shares: list[tuple[Plan, float]], seconds: list[float]) -> dict[str, float]:
    """What a batch of each kind takes on average: plans of one kind may differ, and some are more frequent."""
    total: dict[str, float] = {}
    weight: dict[str, float] = {}
    for (plan, share), taken in zip(shares, seconds, strict=True):
        kind = batch_kind(plan)
        total[kind] = total.get(kind, 0.0) + share * taken
        weight[kind] = weight.get(kind, 0.0) + share
    return {kind: total[kind] / weight[kind] for kind in total}


def _peaks(run: Run, shares: list[tuple[Plan, float]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for plan, _ in shares:
        found[batch_kind(plan)] = max(found.get(batch_kind(plan), 0), run.peak_bytes())
    return found


def _estimated(recipe: Recipe) -> Recipe:
    """The adaptive method decides while it trains; it is counted as the ladder, so that its budget is an estimate."""
    return recipe.replace(method="adagp") if methods.get(recipe.method).planning is Planning.ADAPTIVE else recipe


def _rotated(names: tuple[str, ...], turn: int) -> tuple[str, ...]:
    offset = turn % len(names)
    return names[offset:] + names[:offset]


def phase_counts(recipe: Recipe, total_steps: int, steps_per_epoch: int) -> dict[str, int]:
    """How many batches of each kind a run of `total_steps` has; warm-up batches do the work of BP and count there."""
    schedule = build_schedule(_estimated(recipe), recipe_outline(recipe), total_steps, steps_per_epoch)
    kinds = Counter(batch_kind(schedule(step)) for step in range(total_steps))
    kinds["BP"] += kinds.pop("WARMUP", 0)
    return dict(kinds)


def expected_seconds(calibration: Calibration, recipe: Recipe, total_steps: int, steps_per_epoch: int) -> float:
    """Seconds a run of `total_steps` batches takes at the calibrated costs."""
    costs = calibration.seconds[recipe.method]
    counts = phase_counts(recipe, total_steps, steps_per_epoch)
    return sum(costs[kind] * count for kind, count in counts.items() if count)


def steps_within(calibration: Calibration, recipe: Recipe, budget_seconds: float, steps_per_epoch: int) -> int:
    """The longest run that fits into `budget_seconds`, its ladder fitted to its own length; at least one batch."""
    low, high = 1, 2
    while expected_seconds(calibration, recipe, high, steps_per_epoch) <= budget_seconds:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if expected_seconds(calibration, recipe, middle, steps_per_epoch) <= budget_seconds:
            low = middle
        else:
            high = middle
    return low
