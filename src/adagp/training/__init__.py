"""Training runs and comparisons: recipe, loop, checkpoint, compare."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.training.comparison import Comparison, Settings, compare
    from adagp.training.errors import (
        CheckpointError,
        DivergedError,
        Interrupted,
        RecipeError,
        RunFolderError,
        TrainingError,
    )
    from adagp.training.loop import EpochRecord, Run
    from adagp.training.recipe import Preset, Recipe, load_preset, load_recipe, preset_names
    from adagp.training.runfolder import RunFolder, train

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
        "Comparison": "adagp.training.comparison",
        "DivergedError": "adagp.training.errors",
        "EpochRecord": "adagp.training.loop",
        "Interrupted": "adagp.training.errors",
        "Preset": "adagp.training.recipe",
        "Recipe": "adagp.training.recipe",
        "RecipeError": "adagp.training.errors",
        "Run": "adagp.training.loop",
        "RunFolder": "adagp.training.runfolder",
        "RunFolderError": "adagp.training.errors",
        "Settings": "adagp.training.comparison",
        "TrainingError": "adagp.training.errors",
        "compare": "adagp.training.comparison",
        "load_preset": "adagp.training.recipe",
        "load_recipe": "adagp.training.recipe",
        "preset_names": "adagp.training.recipe",
        "train": "adagp.training.runfolder",
    },
)
