"""Training runs and comparisons: recipe, loop, checkpoint, compare."""

from adagp.training.compare import Comparison, Settings, compare
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
