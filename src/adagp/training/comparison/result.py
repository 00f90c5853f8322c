"""The result of a comparison, as `result.json` holds it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from adagp.files import strict
from adagp.training.tasks import Metric


@dataclass(frozen=True)
class SeedResult:
    """One finished run.

    Attributes:
        seed: Its seed.
        score: The comparison's metric after the last epoch.
        best_score: Its best value after any epoch.
        metrics: All metrics after the last epoch.
        test_loss: After the last epoch.
        train_seconds: Seconds of training, without evaluation.
        epochs: Epochs done at each evaluation.
        scores: The score at each evaluation.
        seconds: Seconds of training up to each evaluation.
        diverged: Why the run was given up; None if it was not.
        reasons: Why an adaptive schedule changed its k:m, for each change.
    """

    seed: int
    score: float
    best_score: float
    metrics: dict[str, float]
    test_loss: float
    train_seconds: float
    epochs: list[float]
    scores: list[float]
    seconds: list[float]
    diverged: str | None = None
    reasons: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class MethodResult:
    """One method over all seeds.

    Attributes:
        method: Its name.
        summary: One line about it.
        steps: Batches in each of its runs.
        score: Mean of the comparison's metric after the last epoch.
        score_std: Standard deviation over seeds; None for one seed.
        train_seconds: Mean seconds of training, predictor included, evaluation excluded.
        speedup: Seconds of bp in this comparison divided by this method's. None when bp did not take part, or when a
            run of either diverged and so ended early.
        batch_ms: Median milliseconds of a batch of each kind; `BP` includes warm-up.
        predictor_ms: Median milliseconds of the predictor in such a batch.
        peak_bytes: Peak bytes of tensors above the resting model, by kind of batch.
        batches: Batches of each kind (see `BATCH_KINDS`), summed over seeds.
        counts: Layer updates applied per source, and fallbacks, summed over seeds.
        cosines: The running cosine of each covered layer after each epoch of the first seed.
        seeds: The result of each seed.
    """

    method: str
    summary: str
    steps: int
    score: float
    score_std: float | None
    train_seconds: float
    speedup: float | None
    batch_ms: dict[str, float]
    predictor_ms: dict[str, float]
    peak_bytes: dict[str, int]
    batches: dict[str, int]
    counts: dict[str, int]
    cosines: dict[str, list[float]]
    seeds: list[SeedResult]

    @property
    def diverged(self) -> int:
        """The number of its runs that diverged."""
        return sum(seed.diverged is not None for seed in self.seeds)


@dataclass(frozen=True)
class Comparison:
    """The whole result.

    Attributes:
        protocol: The protocol in words.
        recipe: What all runs share.
        environment: The machine and software they ran on.
        calibration: The cost of a batch, measured before the runs began.
        metrics: The task's metrics; the first is the score that methods are judged by.
        items: The name of the test items, in the plural.
        test_items: Their number.
        methods: The result of each method.
        verdict: The verdict in words.
    """

    protocol: str
    recipe: dict[str, Any]
    environment: dict[str, Any]
    calibration: dict[str, Any]
    metrics: tuple[Metric, ...]
    items: str
    test_items: int
    methods: list[MethodResult]
    verdict: str

    @property
    def metric(self) -> Metric:
        """The metric that the scores are values of."""
        return self.metrics[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `result.json`."""
        result: dict[str, Any] = strict(dataclasses.asdict(self))
        return result
