"""Stopping between two batches instead of in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from adagp.training.errors import Interrupted

if TYPE_CHECKING:
    from adagp.training.team import Team


class Interrupt:
    """Remembers that a signal asked to stop, until the run is at a point where it can be saved."""

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self.signal_number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether to stop at the next opportunity."""
        return self.signal_number is not None

    def agree(self, team: "Team") -> bool:
        """Whether any rank was asked to stop; then all were."""
        if team.any(self.requested) and self.signal_number is None:
            self.signal_number = signal.SIGTERM
        return self.requested

    def check(self) -> None:
        """Stop here if it has been asked.

        Raises:
            Interrupted: When a signal came.
        """
        if self.signal_number is not None:
            raise Interrupted(self.signal_number)


@contextmanager
def catch_signals() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second of the same stops at once, without saving.

    Of the same: torchrun answers Ctrl-C with a SIGTERM to processes that have got the Ctrl-C already.
    Outside of the main thread signals cannot be caught, and the request never comes.
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
