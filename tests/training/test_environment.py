import json
import platform
from importlib import metadata
from pathlib import Path

import pytest
import torch

from adagp.data import DataSet
from adagp.training import Recipe, Run, RunFolder


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_environment_is_true_and_names_no_place(
    tmp_path: Path, recipe: Recipe, digits: DataSet, threads: int | None
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.prepare(Run(recipe.replace(threads=threads), digits), resume=False)
    environment = json.loads((folder.path / "environment.json").read_text())
    assert environment["versions"]["torch"] == metadata.version("torch")
    assert environment["threads"] == (threads or torch.get_num_threads())
    text = str(environment)
    assert "/" not in text.replace("/ ", "")
    assert platform.node() not in text
