"""Training batches by position, loaded on demand."""

from collections.abc import Callable, Iterator
from typing import Any


class BatchFeed:
    """Loads a batch only when a closure asks for it, so that batches without a forward pass cost no loading."""

    def __init__(self, epoch: Callable[[int, int], Iterator[Any]]) -> None:
        """`epoch(e, i)` iterates over epoch `e` from batch `i` on."""
        self._epoch = epoch
        self._iterator: Iterator[Any] = iter(())
        self._next = (-1, -1)
        self._last: Any = None

    def forget(self) -> None:
        """Release the batch that is held."""
        self._last, self._next = None, (-1, -1)

    def batch(self, epoch: int, index: int) -> Any:
        """Batch `index` of an epoch; asking for the same batch again does not load it again."""
        if self._last is not None and self._next == (epoch, index + 1):
            return self._last
        if self._next != (epoch, index):
            self._iterator = self._epoch(epoch, index)
        self._last = next(self._iterator)
        self._next = (epoch, index + 1)
        return self._last
