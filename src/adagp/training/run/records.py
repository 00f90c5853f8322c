"""The figures of a run, epoch by epoch."""

import math
from dataclasses import dataclass, field

from adagp.training.batch_kinds import BATCH_KINDS


@dataclass(frozen=True)
class EpochRecord:
    """The figures of one epoch.

    Attributes:
        epoch: From 1.
        step: Batches done in the run.
        train_loss: Mean over the epoch's batches with a true gradient; NaN without any.
        test_loss: Mean over the test items. Evaluation is not timed.
        metrics: The task's metrics by name, over the test items.
        lr: Learning rate of the epoch's last batch.
        batches: Batches of each kind (see `BATCH_KINDS`) in this epoch.
        seconds: Seconds spent in each kind: data, forward, gradients, predictor and optimizer.
        predictor_seconds: The predictor's part of them.
        train_seconds: Seconds in the run so far, over all kinds, without evaluation.
        counts: Layer updates applied per source in the run so far, and fallbacks.
        quality: Running figures of the predictions per covered layer; empty without a predictor.
        reasons: Why an adaptive schedule changed its k:m in this epoch; empty for other schedules.
    """

    epoch: int
    step: int
    train_loss: float
    test_loss: float
    metrics: dict[str, float]
    lr: float
    batches: dict[str, int]
    seconds: dict[str, float]
    predictor_seconds: float
    train_seconds: float
    counts: dict[str, int]
    quality: dict[str, dict[str, float]]
    reasons: list[str] = field(default_factory=list)


@dataclass
class EpochTally:
    """Sums over the current epoch."""

    batches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BATCH_KINDS, 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BATCH_KINDS, 0.0))
    predictor_seconds: float = 0.0
    loss_sum: float = 0.0
    loss_batches: int = 0

    @property
    def train_loss(self) -> float:
        """Mean loss of the batches with a true gradient; NaN without any."""
        return self.loss_sum / self.loss_batches if self.loss_batches else math.nan

    def add(self, kind: str, seconds: float, predictor_seconds: float, loss: float | None) -> None:
        """Count one batch."""
        self.batches[kind] += 1
        self.seconds[kind] += seconds
        self.predictor_seconds += predictor_seconds
        if loss is not None and kind != "GP":
            self.loss_sum += loss
            self.loss_batches += 1
