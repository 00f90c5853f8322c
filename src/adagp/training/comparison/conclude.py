"""From finished runs to the result of a comparison."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from adagp.training import methods
from adagp.training.comparison.calibrate import Calibration
from adagp.training.comparison.result import Comparison, MethodResult, SeedResult
from adagp.training.comparison.settings import Settings
from adagp.training.comparison.verdict import Outcome, speedup, verdict
from adagp.training.run.run import Run


def conclude(
    settings: Settings, calibration: Calibration, runs: Sequence[Run], environment: dict[str, Any]
) -> Comparison:
    """The result of a comparison whose runs are all finished."""
    by_method = {name: [run for run in runs if run.recipe.method == name] for name in settings.effective_methods}
    outcomes = {name: _outcome(name, of_method) for name, of_method in by_method.items()}
    results = [
        _method_result(outcomes[name], outcomes.get("bp"), of_method, calibration.peak_bytes[name])
        for name, of_method in by_method.items()
    ]
    return Comparison(
        protocol=settings.protocol,
        recipe=settings.recipe.to_dict(),
        environment=environment,
        calibration=calibration.to_dict(),
        metrics=runs[0].task.metrics,
        items=runs[0].task.items,
        test_items=runs[0].task.test_items,
        methods=results,
        verdict=verdict(list(outcomes.values()), equal_time=settings.budget_seconds is not None),
    )


def _outcome(name: str, runs: Sequence[Run]) -> Outcome:
    return Outcome(
        method=name,
        metric=runs[0].metric,
        scores=tuple(run.scores[-1] for run in runs),
        seconds=fmean(run.train_seconds for run in runs),
        test_items=runs[0].task.test_items,
        diverged=sum(run.diverged is not None for run in runs),
    )


def _method_result(outcome: Outcome, bp: Outcome | None, runs: Sequence[Run], peaks: dict[str, int]) -> MethodResult:
    method = methods.get(outcome.method)
    return MethodResult(
        method=method.name,
        summary=method.summary_with(runs[0].recipe.predictor),
        steps=runs[0].total_steps,
        score=outcome.mean,
        score_std=outcome.spread,
        train_seconds=outcome.seconds,
        speedup=None if bp is None else speedup(outcome, bp),
        batch_ms=_pooled_ms([run.batch_seconds for run in runs]),
        predictor_ms=_pooled_ms([run.predictor_batch_seconds for run in runs]) if method.predictor is not None else {},
        peak_bytes=peaks,
        batches=_summed([record.batches for run in runs for record in run.records]),
        counts=_summed([run.records[-1].counts for run in runs]),
        cosines=_cosines(runs[0]),
        seeds=[_seed_result(run) for run in runs],
    )


def _seed_result(run: Run) -> SeedResult:
    last = run.records[-1]
    return SeedResult(
        seed=run.recipe.seed,
        score=run.scores[-1],
        best_score=run.metric.best(run.scores),
        metrics=last.metrics,
        test_loss=last.test_loss,
        train_seconds=run.train_seconds,
        epochs=[record.step / run.steps_per_epoch for record in run.records],
        scores=run.scores,
        seconds=[record.train_seconds for record in run.records],
        diverged=run.diverged,
        reasons=[reason for record in run.records for reason in record.reasons],
    )


def _pooled_ms(times: Sequence[dict[str, list[float]]]) -> dict[str, float]:
    """Medians over all seeds. Warm-up batches do the same work as BP batches and count as such."""
    pooled = {
        "BP": [value for run in times for kind in ("WARMUP", "BP") for value in run[kind]],
        "MIXED": [value for run in times for value in run["MIXED"]],
        "GP": [value for run in times for value in run["GP"]],
    }
    return {kind: 1e3 * median(values) for kind, values in pooled.items() if values}


def _summed(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def _cosines(run: Run) -> dict[str, list[float]]:
    layers = run.records[-1].quality
    missing = {"cosine": float("nan")}
    return {layer: [record.quality.get(layer, missing)["cosine"] for record in run.records] for layer in layers}
