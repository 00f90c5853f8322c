"""Who wants to know how a run goes: progress bars, event files, tests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adagp.training.loop import EpochRecord, Run


@dataclass(frozen=True)
class BatchEvent:
    """What happened in one batch.

    Attributes:
        step: Its index in the run, from 0.
        phase: One of `planning.KINDS`.
        note: The plan's own word, such as `4:1`.
        loss: None where the plan left the forward pass out.
        seconds: Duration with data, predictor and optimizer.
    """

    step: int
    phase: str
    note: str
    loss: float | None
    seconds: float


class Observer:
    """Hears nothing; derive from it to hear something."""

    def on_start(self, runs: "Sequence[Run]") -> None:
        """Before the first batch, with every run that will be advanced, some perhaps already under way."""

    def on_batch(self, run: "Run", event: BatchEvent) -> None:
        """After every batch, outside of the clock."""

    def on_epoch(self, run: "Run", record: "EpochRecord") -> None:
        """After every epoch and its evaluation."""

    def on_message(self, text: str) -> None:
        """A sentence for the user about what happens now."""


class Several(Observer):
    """Passes everything on to several observers."""

    def __init__(self, *observers: Observer) -> None:
        """Those who want to hear."""
        self._observers = observers

    def on_start(self, runs: "Sequence[Run]") -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_start(runs)

    def on_batch(self, run: "Run", event: BatchEvent) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_batch(run, event)

    def on_epoch(self, run: "Run", record: "EpochRecord") -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_epoch(run, record)

    def on_message(self, text: str) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.on_message(text)
