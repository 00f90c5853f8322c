"""What all tasks check of a recipe against their data."""

from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe


def check_batch_size(recipe: Recipe, available: int, items: str, data: str) -> None:
    """Refuse data that does not fill one batch.

    Raises:
        RecipeError: When `available` training items, or the recipe's limit of them, are fewer than a batch.
    """
    count = min(available, recipe.train_limit or available)
    if count < recipe.batch_size:
        raise RecipeError(
            f"batch_size = {recipe.batch_size} is larger than the {count} training {items} of '{data}', so an epoch "
            "would hold no full batch: lower batch_size"
        )
