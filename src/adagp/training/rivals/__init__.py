"""Rivals of cheaper gradients: other ways to spend less on a training, each in one file.

All of them train by backpropagation alone. `docs/rivals.md` has a card for each.
"""

from adagp.training.recipe import Recipe
from adagp.training.rivals.averaging import Averaging
from adagp.training.rivals.freezing import Freezing
from adagp.training.rivals.pruning import Pruning
from adagp.training.rivals.rival import Rival
from adagp.training.rivals.selective import Selective
from adagp.training.rivals.small_batch import SmallBatch
from adagp.training.rivals.small_size import SmallSize

__all__ = ["RIVALS", "Rival", "build"]

RIVALS: dict[str, type[Rival]] = {
    "small-batch": SmallBatch,
    "small-size": SmallSize,
    "selective": Selective,
    "pruning": Pruning,
    "freezing": Freezing,
    "averaging": Averaging,
}


def build(recipe: Recipe) -> Rival:
    """What a recipe's method changes around backpropagation; for most methods that is nothing."""
    return RIVALS.get(recipe.method, Rival)()
