"""Stops work that does not end: a compiler may take minutes, and asks nobody whether to go on."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN = 0.2
"""Seconds until it is tried again, where an exception would be swallowed."""


class TookTooLongError(BaseException):
    """The time is over. Libraries swallow an Exception, so it is none."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TookTooLongError` inside when the time is over: in the main thread, where the system has timers.

    An exception inside an import may be swallowed, so that it waits for the import's end.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del number
        if importing(frame):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            raise TookTooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGALRM) is stop:  # else Ctrl-C has set a timer of its own
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported in a frame or around it."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None
