"""Training batches by position, loaded on demand."""

from collections.abc import Callable, Iterator
from typing import Any

from adagp.data.order import ScaleOf


class BatchFeed:
    """Loads a batch only when a closure asks for it, so that batches without a forward pass cost no loading."""

    def __init__(
        self, epoch: Callable[[int, int, ScaleOf], Iterator[Any]], scale_of: Callable[[int, int], float]
    ) -> None:
        """Nothing is loaded yet.

        Args:
            epoch: `epoch(e, i, scale_of)` iterates over epoch `e` from batch `i` on, each at its scale.
            scale_of: `scale_of(e, i)` is the scale that batch `i` will have as far as is known. A schedule that decides
                while it trains may decide otherwise; what was loaded ahead is then loaded again.
        """
        self._epoch, self._scale_of = epoch, scale_of
        self._iterator: Iterator[Any] = iter(())
        self._scales: dict[int, float] = {}
        self._next = (-1, -1)
        self._last: Any = None
        self._last_scale = 1.0

    def forget(self) -> None:
        """Release the batch that is held."""
        self._last, self._next = None, (-1, -1)

    def batch(self, epoch: int, index: int, scale: float = 1.0) -> tuple[Any, float]:
        """Batch `index` of an epoch, and the fraction of its size that makes it `scale`.

        Asking for the same batch again does not load it again, unless it is to be larger.
        """
        is_held = self._last is not None and self._next == (epoch, index + 1)
        if not is_held or scale > self._last_scale:
            self._load(epoch, index, scale)
        return self._last, scale / self._last_scale

    def _load(self, epoch: int, index: int, scale: float) -> None:
        if self._next != (epoch, index) or self._scales.get(index, scale) != scale:
            scales: dict[int, float] = {}

            def scale_of(batch: int) -> float:
                return scales.setdefault(batch, self._scale_of(epoch, batch))

            self._scales, self._iterator = scales, self._epoch(epoch, index, scale_of)
        self._scales[index] = scale
        self._last = next(self._iterator)
        self._next, self._last_scale = (epoch, index + 1), self._scales.pop(index)
