"""Runs trained in turn, epoch by epoch, so that what slows down the machine slows down all of them."""

from collections.abc import Sequence
from typing import TypeVar

from adagp.training.errors import DivergedError
from adagp.training.run.folder import RunFolder
from adagp.training.run.run import Run
from adagp.training.run.session import Session
from adagp.training.run.train import train_epoch

T = TypeVar("T")


def interleave(runs: Sequence[tuple[Run, RunFolder]], session: Session) -> None:
    """Train all runs to their end, one epoch of each per round; the order rotates every round.

    Raises:
        Interrupted: After saving, when a signal asked to stop.
    """
    session.observer.on_start([run for run, _ in runs])
    turn = 0
    while any(not run.finished for run, _ in runs):
        for run, folder in rotated(runs, turn):
            if not run.finished:
                _take_turn(run, folder, session)
        turn += 1


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The items in order, starting with a different one every turn, so that none always comes first."""
    offset = turn % len(items)
    return [*items[offset:], *items[:offset]]


def _take_turn(run: Run, folder: RunFolder, session: Session) -> None:
    """Train one epoch of one run. A run that diverges is a result, and the others continue."""
    try:
        train_epoch(run, folder, session)
    except DivergedError as error:
        session.observer.on_message(f"{run.name} is given up: {error}")
        record = run.give_up(str(error))
        folder.save(run)
        session.observer.on_epoch(run, record)
