"""The core must import where torch is the only package there is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adagp.extras import INTEGRATIONS, PACKAGES

SRC = Path(__file__).parents[1] / "src"
# Stands before every other finder and lets none of the project's other dependencies in.
BLOCK = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by the test)", name=name)
sys.meta_path.insert(0, Block())
"""
OTHERS = {*PACKAGES, *INTEGRATIONS, "click", "pandas", "filelock"}


def _run(code: str, others: set[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    source = BLOCK.format(others=sorted(others)) + code
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment)


def test_core_imports_with_torch_alone() -> None:
    result = _run("from adagp import AdaGP, integrations, schedules", OTHERS | {"numpy"})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["adagp.models.zoo", "adagp.data.sets"])
def test_models_and_data_need_no_command_line_or_figures(module: str) -> None:
    result = _run(f"import {module}", OTHERS)
    assert result.returncode == 0, result.stderr


def test_what_needs_no_torch_imports_without_it() -> None:
    modules = "files errors data.files data.vocabulary schedules accelerator report training.errors"
    modules += " training.methods training.recipe training.recipe_files training.run.session training.run.tensorboard"
    result = _run("".join(f"import adagp.{module}\n" for module in modules.split()), OTHERS | {"torch"})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--layer", "c_in=3,c_out=4,out=8x8,kernel=3", "--csv"],
        ["pipeline", "--phases", "GP,BP", "--svg"],
    ],
    ids=lambda words: words[0],
)
def test_the_models_write_files_without_torch(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = f"from adagp.cli import app\napp({[*words, str(path)]!r})"
    result = _run(code, {"torch", "matplotlib"})
    assert result.returncode == 0, result.stderr
    assert path.stat().st_size > 0


def test_lazy_packages_have_every_public_name() -> None:
    """In a process of its own, where nothing else has imported what has the names."""
    code = """
from adagp import data, models, report, training
import adagp
for package in (adagp, data, models, report, training):
    for name in package.__all__:
        assert getattr(package, name) is not None
assert callable(training.compare), "hidden by a submodule of its name"
"""
    result = _run(code, set())
    assert result.returncode == 0, result.stderr


def test_the_block_blocks() -> None:
    assert "blocked by the test" in _run("import matplotlib", OTHERS).stderr
