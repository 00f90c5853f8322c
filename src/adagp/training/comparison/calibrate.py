"""The cost of a batch of each kind under each method, measured side by side before a comparison starts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import torch

from adagp import Plan
from adagp.data import AnyDataSet
from adagp.schedules import Progressive, Repeating
from adagp.training import methods, rivals
from adagp.training.batch_kinds import batch_kind
from adagp.training.comparison.interleave import rotated
from adagp.training.methods import Planning
from adagp.training.planning import build_schedule, recipe_outline
from adagp.training.recipe import Recipe
from adagp.training.run.run import Run
from adagp.training.run.session import Session

# Untimed rounds first: caches are cold, and the optimizer has no state yet.
WARM_ROUNDS = 3
# Then between these numbers of timed rounds, until LONGEST_SECONDS are spent: medians of few short batches are noisy.
TIMED_ROUNDS = 9
MOST_TIMED_ROUNDS = 41
LONGEST_SECONDS = 4.0
# With this rate the weights hardly move: a batch costs the same, and no method diverges while it is measured.
RESTING_LR = 1e-6
# The length of a run, in batches and in batches per epoch, that has room for all rungs of the ladder.
FAR = 10_000


@dataclass(frozen=True)
class Calibration:
    """Median seconds and peak bytes of one batch, by method and kind of batch (`BP`, `MIXED`, `GP`).

    It is stored with a comparison, so that a resumed one computes the same number of batches for every method.
    """

    seconds: dict[str, dict[str, float]]
    peak_bytes: dict[str, dict[str, int]]
    statistic: str = "median"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `calibration.json`."""
        return {"statistic": self.statistic, "seconds": self.seconds, "peak_bytes": self.peak_bytes}

    @classmethod
    def from_dict(cls, values: dict[str, Any], names: tuple[str, ...]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            ValueError: When seconds or bytes of one of the methods are missing or impossible.
        """
        if values.keys() != {"statistic", "seconds", "peak_bytes"} or not isinstance(values["statistic"], str):
            raise ValueError("its fields differ")
        for part in ("seconds", "peak_bytes"):
            for name in names:
                costs = values[part].get(name) if isinstance(values[part], dict) else None
                if not isinstance(costs, dict) or not costs or not all(map(_is_cost, costs.values())):
                    raise ValueError(f"{part} of {name} are missing or not numbers from 0")
        if not all(sum(values["seconds"][name].values()) for name in names):
            raise ValueError("a method takes no time")
        return cls(**values)


def _is_cost(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")  # type: ignore[operator]


def calibrate(
    recipe: Recipe, names: tuple[str, ...], dataset: AnyDataSet, device: torch.device, session: Session
) -> Calibration:
    """The costs of a batch under several methods, all at the recipe's own batch size."""
    # short-bp does what bp does: one measurement, so that noise cannot make them differ.
    measured = dict.fromkeys("bp" if name == "short-bp" else name for name in names)
    calibration = measure({name: recipe.replace(method=name) for name in measured}, dataset, device, session)
    if "short-bp" in names:
        for costs in (calibration.seconds, calibration.peak_bytes):
            costs["short-bp"] = costs["bp"]  # type: ignore[assignment]
    return calibration


def measure(
    recipes: Mapping[str, Recipe],
    dataset: AnyDataSet,
    device: torch.device,
    session: Session,
    longest_seconds: float = LONGEST_SECONDS,
) -> Calibration:
    """Train throw-away runs, one batch of each plan of each recipe in turn; the result has the labels of the recipes.

    In turn, because the machine's speed drifts: what slows down one recipe slows down all of them. Rounds that were
    disturbed are left out: the quicker half counts, by the sum over all recipes, so that none is favoured.
    """
    session.observer.on_message("measuring what a batch costs under each method")
    runs: dict[str, list[Run]] = {}
    shares: dict[str, list[tuple[Plan, float]]] = {}
    for label, recipe in recipes.items():
        chosen = recipe.replace(lr=RESTING_LR)
        plans, stages = _plan_shares(chosen), rivals.build(chosen).stages
        cycle = Repeating([plan for plan, _ in plans])
        runs[label] = [Run(chosen, dataset, device=device, schedule=cycle, progress=stage) for stage, _ in stages]
        shares[label] = [(plan, part * share) for _, part in stages for plan, share in plans]
    rounds: list[dict[str, list[float]]] = []
    turn, spent = 0, 0.0
    while turn < WARM_ROUNDS + TIMED_ROUNDS or (spent < longest_seconds and turn < WARM_ROUNDS + MOST_TIMED_ROUNDS):
        times: dict[str, list[float]] = {}
        for label in rotated(tuple(runs), turn):
            session.interrupt.check()
            plans_each = len(shares[label]) // len(runs[label])
            times[label] = [run.step().seconds for run in runs[label] for _ in range(plans_each)]
        spent += _total(times)
        rounds += [times] if turn >= WARM_ROUNDS else []
        turn += 1
    quiet = quieter_half(rounds)
    seconds = {
        label: _by_kind(of_label, [median(times) for times in zip(*(taken[label] for taken in quiet), strict=True)])
        for label, of_label in shares.items()
    }
    # The first stage of a rival is its dearest.
    peaks = {
        label: _peaks(of_label[0], shares[label][: len(shares[label]) // len(of_label)])
        for label, of_label in runs.items()
    }
    for of_label in runs.values():
        for run in of_label:
            run.gp.remove()
    statistic = f"median of {len(quiet)} batches of each plan, methods in turn, the quicker half of the rounds"
    return Calibration(seconds, peaks, statistic)


def quieter_half(rounds: Sequence[dict[str, list[float]]]) -> list[dict[str, list[float]]]:
    """The half of the rounds that took the least time."""
    return sorted(rounds, key=_total)[: (len(rounds) + 1) // 2]


def _total(times: dict[str, list[float]]) -> float:
    return sum(map(sum, times.values()))


def _plan_shares(recipe: Recipe) -> list[tuple[Plan, float]]:
    """Each plan that the recipe's runs follow after warm-up, to time all of them within a few batches."""
    schedule = build_schedule(_estimated(recipe), recipe_outline(recipe), FAR, FAR)
    return plan_shares(schedule, recipe.ladder(FAR, FAR).warmup_steps)


def plan_shares(schedule: Callable[[int], Plan], start: int, count: int = 64) -> list[tuple[Plan, float]]:
    """The distinct plans of a schedule from `start` on, in order of appearance, each with its fraction of the batches.

    A repeating schedule is examined for one whole cycle, any other for `count` steps. Notes are ignored.
    """
    if isinstance(schedule, Progressive):
        return schedule.plan_shares()
    if isinstance(schedule, Repeating):
        count = len(schedule.plans)
    found: dict[tuple[object, ...], tuple[Plan, float]] = {}
    for step in range(start, start + count):
        plan = schedule(step)
        key = (plan.phase, plan.default, tuple(plan.overrides.items()), plan.scale)
        first, share = found.get(key, (plan, 0.0))
        found[key] = (first, share + 1 / count)
    return list(found.values())


def _by_kind(shares: list[tuple[Plan, float]], seconds: list[float]) -> dict[str, float]:
    """Mean seconds of a batch of each kind, weighted by how often each plan of that kind occurs."""
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
    """Count methods that decide while they train as those that follow a plan: their cost is an estimate."""
    plans = {Planning.ADAPTIVE: "adagp", Planning.GROWING: "progressive", Planning.ECONOMICAL: "sampled"}
    planned = plans.get(methods.get(recipe.method).planning)
    return recipe if planned is None else recipe.replace(method=planned)


def kind_counts(recipe: Recipe, total_steps: int, steps_per_epoch: int) -> dict[str, int]:
    """Batches of each kind in a run of `total_steps`. Warm-up batches do the work of BP and count as such."""
    schedule = build_schedule(_estimated(recipe), recipe_outline(recipe), total_steps, steps_per_epoch)
    kinds = Counter(batch_kind(schedule(step)) for step in range(total_steps))
    kinds["BP"] += kinds.pop("WARMUP", 0)
    return dict(kinds)


def expected_seconds(calibration: Calibration, recipe: Recipe, total_steps: int, steps_per_epoch: int) -> float:
    """Seconds a run of `total_steps` batches takes at the calibrated costs."""
    costs = calibration.seconds[recipe.method]
    counts = kind_counts(recipe, total_steps, steps_per_epoch)
    return sum(costs[kind] * count for kind, count in counts.items() if count)


def steps_within(calibration: Calibration, recipe: Recipe, budget_seconds: float, steps_per_epoch: int) -> int:
    """The batches of the longest run that fits into `budget_seconds`, with its ladder fitted to it; at least one."""
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
