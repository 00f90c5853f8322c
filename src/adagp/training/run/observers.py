"""Observers of a run: progress bars, event files, tests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adagp.training.run.records import EpochRecord
    from adagp.training.run.run import Run


@dataclass(frozen=True)
class BatchEvent:
    """What happened in one batch.

    Attributes:
        step: Its index in the run, from 0.
        kind: One of `BATCH_KINDS`.
        note: The plan's note, such as `4:1`.
        loss: None where the plan left out the forward pass.
        seconds: Duration, including data, predictor and optimizer.
    """

    step: int
    kind: str
    note: str
    loss: float | None
    seconds: float


class Observer:
    """Ignores every event; subclasses override what they need."""

    def on_start(self, runs: "Sequence[Run]") -> None:
        """Before the first batch, with every run that will be trained; resumed runs are already part-way."""

    def on_batch(self, run: "Run", event: BatchEvent) -> None:
        """After every batch; not timed."""

    def on_epoch(self, run: "Run", record: "EpochRecord") -> None:
        """After every epoch and its evaluation."""

    def on_message(self, text: str) -> None:
        """A sentence for the user about what happens now."""


class CompositeObserver(Observer):
    """Forwards every event to several observers."""

    def __init__(self, *observers: Observer) -> None:
        """`observers` are called in this order."""
        self._observers = observers

    def on_start(self, runs: "Sequence[Run]") -> None:
        """Forward it."""
        for observer in self._observers:
            observer.on_start(runs)

    def on_batch(self, run: "Run", event: BatchEvent) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.on_batch(run, event)

    def on_epoch(self, run: "Run", record: "EpochRecord") -> None:
        """Forward it."""
        for observer in self._observers:
            observer.on_epoch(run, record)

    def on_message(self, text: str) -> None:
        """Forward it."""
        for observer in self._observers:
            observer.on_message(text)
