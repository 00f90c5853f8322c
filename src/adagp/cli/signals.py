"""Ctrl-C and SIGTERM: one line and the exit code that a shell expects, from the first import to the end."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE_SECONDS = 5
"""How long a command that was asked to stop may take to tidy up."""
NUMBERS = (signal.SIGINT, signal.SIGTERM)
LINE = "adagp: stopped"


class Stopped(KeyboardInterrupt):
    """A signal asked to stop; of Ctrl-C's kind, which libraries know to let through.

    Attributes:
        signal_number: That signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_number = signal_number


def exit_on_signals() -> None:
    """End the process at once when a signal comes: while modules are imported, there is nothing to tidy up.

    An exception would not do. Raised inside an import it may be swallowed, and in one that C++ began it aborts.
    """
    for number in NUMBERS:
        signal.signal(number, _exit)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` when a signal comes, so that files and folders under way are tidied up.

    If that takes longer than `PATIENCE_SECONDS`, or someone swallowed the exception, the process ends without. So it
    does inside an import; see `exit_on_signals`.
    Outside of the main thread signals cannot be caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watched = (*NUMBERS, signal.SIGALRM) if hasattr(signal, "SIGALRM") else NUMBERS
    previous = {number: signal.getsignal(number) for number in watched}

    def stop(number: int, frame: FrameType | None) -> None:
        if _importing(frame):
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


def _importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None
