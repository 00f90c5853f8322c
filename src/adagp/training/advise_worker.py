"""A training that does batches for the adviser, in a process of its own."""

import json
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from adagp import data
from adagp.advice.process import serve
from adagp.advice.subject import build_subject
from adagp.advice.user_file import Training, load_training
from adagp.training.advising import recipe_training
from adagp.training.recipe import Recipe


def module_command(reference: str) -> list[str]:
    """The command of a worker for a training in a user's file."""
    return _command(module=reference)


def recipe_command(recipe: Recipe, data_root: Path | None) -> list[str]:
    """The command of a worker for the training of a recipe."""
    return _command(recipe=recipe.to_dict(), data_root=None if data_root is None else str(data_root))


def _command(**spec: Any) -> list[str]:
    return [sys.executable, "-m", __name__, json.dumps({**spec, "threads": torch.get_num_threads()})]


def _training(spec: dict[str, Any]) -> Training:
    if "module" in spec:
        return load_training(spec["module"])
    recipe = Recipe.from_mapping(spec["recipe"])
    root = None if spec["data_root"] is None else Path(spec["data_root"])
    return recipe_training(recipe, data.load_any(recipe.data, root), torch.device("cpu"))


def build(spec: dict[str, Any]) -> Callable[[], None]:
    """What does one batch of the training of a spec."""
    torch.set_num_threads(spec["threads"])
    own = _training(spec)
    first = islice(own.loader, 1)
    return build_subject(own.model, own.optimizer, own.closure, first, perf_counter).rested_step


if __name__ == "__main__":
    serve(lambda: build(json.loads(sys.argv[1])))
