"""Coarse batches where the library makes the batch: a function of the user's makes it smaller."""

from collections.abc import Callable
from typing import Any

from adagp._engine.batch import Batch
from adagp.schedules import Plan, Schedule

Resize = Callable[[Any, float], Any]
"""Takes the library's batch and a scale below 1, and returns the batch with samples of that fraction of their size."""


def refuse_missing_resize(schedule: Schedule | Callable[[int], Plan], resize: Resize | None) -> None:
    """Refuse a schedule with coarse batches if nothing makes them; a bare function is refused at its first."""
    coarse = sorted(scale for scale in getattr(schedule, "scales", ()) if scale < 1)
    if coarse and resize is None:
        raise ValueError(
            f"the schedule has coarse batches (scale {coarse[0]:g}), and nothing makes them: give "
            "resize=lambda batch, scale: ..., which returns the batch with images of adagp.coarse.images(x, scale)"
        )


def resized(opened: Batch, batch: Any, resize: Resize | None) -> Any:
    """The batch at the scale of its plan."""
    return batch if resize is None or opened.scale == 1 else resize(batch, opened.scale)
