"""Ctrl-C and SIGTERM end a command in one line and the exit code that a shell expects, even during imports."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from adagp.patience import importing

PATIENCE_SECONDS = 5
"""The time that a stopped command has to clean up."""
NUMBERS = (signal.SIGINT, signal.SIGTERM)
LINE = "adagp: stopped"


class Stopped(KeyboardInterrupt):
    """A signal asked to stop. It derives from KeyboardInterrupt, which libraries do not swallow.

    Attributes:
        signal_number: The number of the signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_number = signal_number


def exit_on_signals() -> None:
    """End the process at once when a signal comes: while modules are imported, there is nothing to clean up.

    An exception raised inside an import may be swallowed, and in an import started from C++ it aborts the process.
    """
    for number in NUMBERS:
        signal.signal(number, _exit)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` when a signal comes, so that unfinished files and folders are removed.

    If that takes longer than `PATIENCE_SECONDS`, or the exception was swallowed, the process ends at once. Inside an
    import it ends at once too; see `exit_on_signals`. Signals can be caught in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watched = (*NUMBERS, signal.SIGALRM) if hasattr(signal, "SIGALRM") else NUMBERS
    previous = {number: signal.getsignal(number) for number in watched}

    def stop(number: int, frame: FrameType | None) -> None:
        if importing(frame):
            _exit(number, frame)
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, lambda _, late: _exit(number, late))
            signal.alarm(PATIENCE_SECONDS)
        raise Stopped(number)

    for number in NUMBERS:
        signal.signal(number, stop)
    try:
        yield
    finally:
        if hasattr(signal, "SIGALRM"):
            signal.alarm(0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    del frame
    os.write(2, f"{LINE}\n".encode())
    os._exit(128 + number)
