"""The training loop of one run: batches, evaluations and checkpoints until it is finished."""

import time
from typing import Any

from adagp.measure import cpu_threads
from adagp.training.errors import DivergedError
from adagp.training.run.folder import RunFolder, summarise
from adagp.training.run.run import Run
from adagp.training.run.session import Session


def train(run: Run, folder: RunFolder, session: Session | None = None) -> dict[str, Any]:
    """Train `run` to its end with its recipe's CPU threads.

    Returns:
        The content of `result.json`.

    Raises:
        Interrupted: After saving, when a signal asked to stop.
        DivergedError: When the loss is not finite; the last checkpoint stays.
    """
    session = session or Session()
    session.observer.on_start([run])
    try:
        with cpu_threads(run.recipe.threads):
            while not run.finished:
                train_epoch(run, folder, session)
    except DivergedError as error:
        folder.mark_diverged(run, str(error))
        raise
    return summarise(run)


def train_epoch(run: Run, folder: RunFolder, session: Session) -> None:
    """Train to the end of the current epoch, saving at the end and at least every `session.checkpoint_seconds`.

    Raises:
        Interrupted: After saving, when a signal asked to stop.
        DivergedError: When the loss is not finite; the last checkpoint stays.
    """
    interrupt = session.interrupt
    saved = time.monotonic()
    while not run.epoch_complete:
        session.observer.on_batch(run, run.step())
        stop = interrupt.agree(run.world.any)
        if stop or time.monotonic() - saved >= session.checkpoint_seconds:
            folder.save(run)
            saved = time.monotonic()
        if stop:
            interrupt.check()
    record = run.finish_epoch()
    folder.save(run)
    session.observer.on_epoch(run, record)
    if interrupt.agree(run.world.any):
        interrupt.check()
