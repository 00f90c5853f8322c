"""Stop between two batches instead of in the middle of one."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from adagp.training.errors import Interrupted


class Interrupt:
    """Remembers that a signal asked to stop, until the run reaches a point where it can be saved."""

    def __init__(self) -> None:
        """Start without a request."""
        self.signal_number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether to stop at the next opportunity."""
        return self.signal_number is not None

    def agree(self, any_rank: Callable[[bool], bool]) -> bool:
        """Whether any rank was asked to stop; if one was, all stop. `any_rank` is `World.any`."""
        if any_rank(self.requested) and self.signal_number is None:
            self.signal_number = signal.SIGTERM
        return self.requested

    def check(self) -> None:
        """Stop here if a signal asked for it.

        Raises:
            Interrupted: When a signal came.
        """
        if self.signal_number is not None:
            raise Interrupted(self.signal_number)


@contextmanager
def catch_signals() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C or SIGTERM into a request; the same signal again stops at once, without saving.

    Each signal counts by itself, because torchrun answers Ctrl-C with a SIGTERM to processes that received the Ctrl-C.
    Signals can be caught in the main thread only; in any other, no request ever comes.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def remember(number: int, frame: FrameType | None) -> None:
        del frame
        interrupt.signal_number = number
        signal.signal(number, previous[number])

    for number in numbers:
        signal.signal(number, remember)
    try:
        yield interrupt
    finally:
        restore()
