"""The schedules of simulated trainings, by the names that their methods have in `adagp train`."""

from collections.abc import Mapping, Sequence

from adagp.accelerator.shapes import require_count, require_known
from adagp.schedules import COARSE, Schedule, ladder, progressive

EPOCH_STEPS = 60
"""Batches that stand for an epoch. Every k + m of the ladder divides it, so the shares of phases are exact."""
MOST_EPOCHS = 10_000  # their plans are counted step by step
METHODS: Mapping[str, str] = {
    "adagp": "ADA-GP's ladder, with its predictor",
    "coarse": "the ladder; its GP batches are BP batches of smaller samples, without a predictor",
    "progressive": "BP batches of small samples first, of full size at the end",
}
SCALE = 0.5
LEVELS = ((0.5, 0.6), (1.0, 0.4))


def paper_schedule(epochs: int) -> tuple[Schedule, int]:
    """The paper's ladder (section 3.5), and the steps that stand for this number of epochs.

    Raises:
        ValueError: If there is no epoch.
    """
    return method_schedule("adagp", epochs)


def method_schedule(
    method: str, epochs: int, scale: float = SCALE, levels: Sequence[tuple[float, float]] = LEVELS
) -> tuple[Schedule, int]:
    """The schedule of a method, and the steps that stand for this number of epochs.

    Args:
        method: One of `METHODS`.
        epochs: Length of the training.
        scale: For `coarse`, the fraction of their size that samples have in the cheap batches.
        levels: For `progressive`, pairs of a scale and its share of the steps.

    Raises:
        ValueError: If the method is unknown, there is no epoch, or a scale is none.
    """
    require_known("method", method, METHODS)
    require_count("epochs", epochs, MOST_EPOCHS)
    steps = epochs * EPOCH_STEPS
    if method == "progressive":
        return progressive(steps, levels), steps
    return ladder(EPOCH_STEPS, source=COARSE if method == "coarse" else "predicted", scale=scale), steps
