"""Smaller batches: more steps in the same time."""

from adagp.training.recipe import Recipe
from adagp.training.rivals.rival import Rival


class SmallBatch(Rival):
    """Halves the batch. Where noise does not limit progress, twice the steps are worth more than precise ones."""

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with half of its batch size."""
        return recipe.replace(batch_size=max(1, recipe.batch_size // 2))
