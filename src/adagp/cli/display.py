"""Progress of training runs, on stderr."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from adagp.training.run.observers import BatchEvent, Observer

if TYPE_CHECKING:
    from adagp.training import EpochRecord, Run


class Display(Observer):
    """Progress on stderr: a bar on a terminal, a line per epoch elsewhere."""

    def __init__(self, quiet: bool, silent: bool = False) -> None:
        """Create a display. `quiet` shows only the bar, for `--json`; `silent` shows nothing."""
        self._console = Console(stderr=True, highlight=False, quiet=silent)
        self._live = self._console.is_terminal
        self._quiet = quiet and not self._live
        self._scores: dict[str, str] = {}
        self._tenth = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TaskProgressColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            disable=not self._live,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def on_start(self, runs: "Sequence[Run]") -> None:
        """Set the bar to the batches of all runs."""
        total, done = sum(run.total_steps for run in runs), sum(run.step_index for run in runs)
        self._progress.reset(self._task, total=total, completed=done)

    def on_batch(self, run: "Run", event: BatchEvent) -> None:
        """Show the loss, phase, k:m and last score of this run."""
        if self._live:
            score = self._scores.get(run.name)
            known = "" if score is None else f" {score}"
            loss = "" if event.loss is None else f" loss {event.loss:.3f}"
            kind = event.kind if event.note in ("warm-up", event.kind) else f"{event.kind} {event.note}"
            epoch = min(event.step // run.steps_per_epoch + 1, run.total_epochs)
            text = f"{run.name} {epoch}/{run.total_epochs} {kind}{loss}{known}"
            self._progress.update(self._task, advance=1, description=text)

    def on_epoch(self, run: "Run", record: "EpochRecord") -> None:
        """Print a line per epoch."""
        score = record.metrics[run.metric.name]
        self._scores[run.name] = run.metric.show(score)
        if not self._quiet:
            self._console.print(
                f"{run.name:<18} epoch {record.epoch:>3}/{run.total_epochs}  loss {record.train_loss:.4f}  "
                f"{run.metric.heading} {run.metric.cell(score)}  {record.train_seconds:.1f} s",
                soft_wrap=True,
            )

    def on_message(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            self._console.print(text, soft_wrap=True, markup=False)

    def on_progress(self, done: int, total: int, text: str) -> None:
        """Move the bar; elsewhere than on a terminal, print a line at every tenth."""
        if self._live:
            self._progress.update(self._task, completed=done, total=total, description=text)
            return
        tenth = 10 * done // max(total, 1)
        if tenth > self._tenth:
            self.on_message(f"{text}: {10 * tenth} %")
        self._tenth = tenth
