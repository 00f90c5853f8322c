"""Runs that take turns, epoch by epoch, so that whatever slows the machine down slows down all of them."""

from collections.abc import Sequence

from adagp.training.defaults import CHECKPOINT_SECONDS
from adagp.training.errors import DivergedError
from adagp.training.interrupt import Interrupt
from adagp.training.loop import Run
from adagp.training.observers import Observer
from adagp.training.runfolder import RunFolder, train_epoch


def take_turns(
    runs: Sequence[tuple[Run, RunFolder]],
    *,
    observer: Observer,
    interrupt: Interrupt,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Train all runs to their end; the order changes every turn.

    Raises:
        Interrupted: After saving, when a signal asked to stop.
    """
    observer.on_start([run for run, _ in runs])
    turn = 0
    while any(not run.finished for run, _ in runs):
        offset = turn % len(runs)
        for run, folder in [*runs[offset:], *runs[:offset]]:
            if not run.finished:
                _take_turn(run, folder, observer, interrupt, checkpoint_seconds)
        turn += 1


def _take_turn(
    run: Run, folder: RunFolder, observer: Observer, interrupt: Interrupt, checkpoint_seconds: float
) -> None:
    """One epoch of one run. A method that diverges is a result; the others go on."""
    try:
        train_epoch(run, folder, observer=observer, interrupt=interrupt, checkpoint_seconds=checkpoint_seconds)
    except DivergedError as error:
        observer.on_message(f"{run.name} is given up: {error}")
        record = run.give_up(str(error))
        folder.save(run)
        observer.on_epoch(run, record)
