"""Pausing Python's garbage collector while a program is compiled."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """No search for cycles: a program has hundreds of thousands of objects and none, and searching takes half the time.

    Also a decorator.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
