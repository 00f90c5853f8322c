"""The result of a comparison under the budget protocol, from its folder and at any time."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from adagp.files import strict
from adagp.training.budget.judge import Interval, Reached, Speed, interval, p_value, speed, time_to, verdict
from adagp.training.budget.outcome import (
    RunOutcome,
    Target,
    best_candidates,
    judged_runs,
    target_of,
)
from adagp.training.budget.parts import Candidate
from adagp.training.budget.reference import stored_reference
from adagp.training.budget.settings import PLAIN, BudgetSettings, stored
from adagp.training.errors import RunFolderError
from adagp.training.run.folder import read_file
from adagp.training.tasks import Metric


@dataclass(frozen=True)
class MethodOutcome:
    """One method.

    Attributes:
        method: Its name.
        summary: One line about it.
        candidate: The learning rate and batch size that were chosen.
        at_edge: Whether the chosen learning rate is the lowest or highest of several: a wider grid might change it.
        runs: Its finished runs.
        score: Its score in the whole budget, over seeds.
        train_loss: Mean training loss of the last epoch in the whole budget; None without true gradients.
        seconds: Mean reference seconds in the whole budget.
        reached: When the mean over seeds reached the target.
        times: When each seed reached it, for the seeds that have runs of every length.
        gain: By how much its score is better than plain backpropagation's, over paired seeds; None for itself.
        gain_p: Of the paired test that the gain is 0.
        speed: How much sooner it reached the target.
        diverged: The number of its runs that diverged.
        verdict: One phrase.
    """

    method: str
    summary: str
    candidate: Candidate
    at_edge: bool
    runs: tuple[RunOutcome, ...]
    score: Interval
    train_loss: float | None
    seconds: float
    reached: Reached
    times: tuple[Reached, ...]
    gain: Interval | None
    gain_p: float | None
    speed: Speed | None
    diverged: int
    verdict: str


@dataclass(frozen=True)
class BudgetResult:
    """What a comparison shows so far.

    Attributes:
        settings: What is compared.
        environment: The machine and software.
        budget_seconds: Reference seconds of the whole budget.
        statistic: How costs were computed.
        metrics: The task's metrics; the first is the score.
        items: The name of the test items.
        test_items: Their number.
        target: The score to be reached; None while plain runs are missing.
        methods: Those with at least one run in the whole budget.
        finished: Runs that are finished, of those that are judged.
        planned: Runs that will be judged.
    """

    settings: BudgetSettings
    environment: dict[str, Any]
    budget_seconds: float
    statistic: str
    metrics: tuple[Metric, ...]
    items: str
    test_items: int
    target: Target | None
    methods: tuple[MethodOutcome, ...]
    finished: int
    planned: int

    @property
    def metric(self) -> Metric:
        """The metric that the scores are values of."""
        return self.metrics[0]

    @property
    def is_complete(self) -> bool:
        """Whether every run is finished."""
        return self.finished == self.planned

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `result.json`."""
        values: dict[str, Any] = strict(dataclasses.asdict(self) | {"settings": self.settings.to_dict()})
        return values


def read_result(path: Path) -> BudgetResult:
    """What the comparison in a folder shows so far.

    Raises:
        RunFolderError: When the folder holds no such comparison, or nothing is finished in it yet.
    """
    settings = stored(path)
    reference = stored_reference(path)
    if reference is None:
        raise RunFolderError(f"'{path}' has no costs yet: continue it by `adagp compare --out {path} --resume`")
    chosen = best_candidates(settings, reference, path)
    target = target_of(settings, reference, path, chosen[PLAIN])
    runs = {
        name: judged_runs(settings, reference, path, candidate) if candidate else []
        for name, candidate in chosen.items()
    }
    metric = reference.metrics[0]
    methods = [
        _method(settings, metric, candidate, runs[name], runs[PLAIN], target, chosen[PLAIN])
        for name, candidate in chosen.items()
        if candidate is not None and _in_full(runs[name])
    ]
    return BudgetResult(
        settings=settings,
        environment=read_file(path / "environment.json"),
        budget_seconds=reference.budget_seconds,
        statistic=reference.statistic,
        metrics=reference.metrics,
        items=reference.items,
        test_items=reference.test_items,
        target=target,
        methods=tuple(methods),
        finished=sum(map(len, runs.values())),
        planned=len(settings.methods) * len(settings.seeds) * len(settings.options.shares),
    )


def _in_full(runs: list[RunOutcome]) -> dict[int, RunOutcome]:
    """The runs that had the whole budget, by seed."""
    return {run.seed: run for run in runs if run.share == 1}


def _method(
    settings: BudgetSettings,
    metric: Metric,
    candidate: Candidate,
    runs: list[RunOutcome],
    plain: list[RunOutcome],
    target: Target | None,
    rival: Candidate | None,
) -> MethodOutcome:
    full, plain_full = _in_full(runs), _in_full(plain)
    pairs = [seed for seed in full if seed in plain_full]
    gains = [metric.gain(full[seed].score, plain_full[seed].score) for seed in pairs]
    is_plain = candidate.method == PLAIN
    losses = [run.train_loss for run in full.values() if run.train_loss is not None]
    reached = _reached(settings, runs, target, metric)
    faster = None if is_plain else _speed(settings, runs, plain, target, metric)
    gain_p = None if is_plain else p_value(gains)
    diverged = sum(run.diverged is not None for run in runs)
    said = "the rival of all others"
    if not is_plain:
        said = verdict(len(pairs), fmean(gains), gain_p, faster or Speed(None)) if pairs else "no paired seed yet"
    if rival is not None and not is_plain and _at_edge(settings, rival):
        said += "; bp's rate is at the edge of the grid: widen it before a claim"
    return MethodOutcome(
        method=candidate.method,
        summary=settings.summary(candidate.method),
        candidate=candidate,
        at_edge=_at_edge(settings, candidate),
        runs=tuple(runs),
        score=interval([run.score for run in full.values()]),
        train_loss=fmean(losses) if losses else None,
        seconds=fmean(run.seconds for run in full.values()),
        reached=reached,
        times=_times(settings, runs, target, metric),
        gain=interval(gains) if gains and not is_plain else None,
        gain_p=gain_p,
        speed=faster,
        diverged=diverged,
        verdict=f"{said}; diverged in {diverged} of {len(runs)} runs" if diverged else said,
    )


def _at_edge(settings: BudgetSettings, candidate: Candidate) -> bool:
    """Whether a learning rate is the lowest or highest of several, so that a rate outside of them might be better."""
    rates = settings.options.rates
    return len(rates) > 1 and candidate.lr in (min(rates), max(rates))


def _means(settings: BudgetSettings, runs: list[RunOutcome]) -> dict[float, float]:
    """The mean score of each length that all seeds of the whole budget have, by seconds."""
    full = _in_full(runs)
    means = {}
    for share in settings.options.shares:
        of_share = [run for run in runs if run.share == share and run.seed in full]
        if len(of_share) == len(full):
            means[fmean(run.seconds for run in of_share)] = fmean(run.score for run in of_share)
    return means


def _of_seed(runs: list[RunOutcome], seed: int) -> dict[float, float]:
    return {run.seconds: run.score for run in runs if run.seed == seed}


def _reached(settings: BudgetSettings, runs: list[RunOutcome], target: Target | None, metric: Metric) -> Reached:
    return Reached(None) if target is None else time_to(target.score, _means(settings, runs), metric)


def _whole_seeds(settings: BudgetSettings, *methods: list[RunOutcome]) -> list[int]:
    """The seeds with runs of every length in all of these methods."""
    count = len(settings.options.shares)
    return [seed for seed in settings.seeds if all(sum(run.seed == seed for run in runs) == count for runs in methods)]


def _times(
    settings: BudgetSettings, runs: list[RunOutcome], target: Target | None, metric: Metric
) -> tuple[Reached, ...]:
    seeds = [] if target is None else _whole_seeds(settings, runs)
    return tuple(time_to(target.score, _of_seed(runs, seed), metric) for seed in seeds if target is not None)


def _speed(
    settings: BudgetSettings,
    runs: list[RunOutcome],
    plain: list[RunOutcome],
    target: Target | None,
    metric: Metric,
) -> Speed | None:
    if target is None:
        return None
    seeds = _whole_seeds(settings, runs, plain)
    paired = [[run for run in of_method if run.seed in seeds] for of_method in (plain, runs)]
    if not seeds:
        return None
    mean_times = [_reached(settings, of_method, target, metric) for of_method in paired]
    pairs = []
    for seed in seeds:
        one, two = (time_to(target.score, _of_seed(of_method, seed), metric) for of_method in (plain, runs))
        pairs.append((one, two))
    return speed(mean_times[0], mean_times[1], pairs)
