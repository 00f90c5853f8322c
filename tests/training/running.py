"""Runs in folders of their own, and a fault to put into them."""

from pathlib import Path

from adagp.data import DataSet
from adagp.training import Recipe, Run, RunFolder

NAN = float("nan")


def begin(path: Path, recipe: Recipe, digits: DataSet) -> tuple[Run, RunFolder]:
    run, folder = Run(recipe, digits), RunFolder(path)
    folder.prepare(run, resume=False)
    return run, folder


def break_gradient(run: Run, name: str, step: int) -> None:
    """From batch `step` on, the true gradient of one parameter is NaN while the loss is finite."""
    run.model.get_parameter(name).register_hook(lambda grad: grad * NAN if run.step_index >= step else grad)
