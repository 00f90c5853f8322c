"""Training runs (`run`), comparisons of methods (`comparison`), and the recipes that describe them."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.training.comparison.compare import compare
    from adagp.training.comparison.result import Comparison
    from adagp.training.comparison.settings import Settings
    from adagp.training.errors import (
        CheckpointError,
        DivergedError,
        Interrupted,
        RecipeError,
        RunFolderError,
        TrainingError,
    )
    from adagp.training.recipe import Recipe
    from adagp.training.recipe_files import Preset, load_preset, load_recipe, preset_names
    from adagp.training.run.folder import RunFolder
    from adagp.training.run.records import EpochRecord
    from adagp.training.run.run import Run
    from adagp.training.run.session import Session
    from adagp.training.run.train import train

__all__ = [
    "CheckpointError",
    "Comparison",
    "DivergedError",
    "EpochRecord",
    "Interrupted",
    "Preset",
    "Recipe",
    "RecipeError",
    "Run",
    "RunFolder",
    "RunFolderError",
    "Session",
    "Settings",
    "TrainingError",
    "compare",
    "load_preset",
    "load_recipe",
    "preset_names",
    "train",
]

__getattr__ = lazily(
    __name__,
    {
        "CheckpointError": "adagp.training.errors",
        "Comparison": "adagp.training.comparison.result",
        "DivergedError": "adagp.training.errors",
        "EpochRecord": "adagp.training.run.records",
        "Interrupted": "adagp.training.errors",
        "Preset": "adagp.training.recipe_files",
        "Recipe": "adagp.training.recipe",
        "RecipeError": "adagp.training.errors",
        "Run": "adagp.training.run.run",
        "RunFolder": "adagp.training.run.folder",
        "RunFolderError": "adagp.training.errors",
        "Session": "adagp.training.run.session",
        "Settings": "adagp.training.comparison.settings",
        "TrainingError": "adagp.training.errors",
        "compare": "adagp.training.comparison.compare",
        "load_preset": "adagp.training.recipe_files",
        "load_recipe": "adagp.training.recipe_files",
        "preset_names": "adagp.training.recipe_files",
        "train": "adagp.training.run.train",
    },
)
