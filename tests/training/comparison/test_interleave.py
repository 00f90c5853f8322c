import dataclasses
from pathlib import Path

import pytest

from adagp.data import DataSet
from adagp.training import Recipe, Session
from adagp.training.comparison.interleave import interleave
from tests.training.running import begin, break_gradient


@pytest.mark.parametrize("immediate", [False, True])
def test_a_comparison_gives_up_the_method_and_goes_on(
    tmp_path: Path, recipe: Recipe, digits: DataSet, immediate: bool
) -> None:
    pairs = [
        begin(tmp_path / method, dataclasses.replace(recipe, method=method, immediate=immediate), digits)
        for method in ("bp", "adagp")
    ]
    (plain, _), (broken, _) = pairs
    name, _ = next(broken.model.named_parameters())
    break_gradient(broken, name, step=4)
    interleave(pairs, Session())
    assert plain.diverged is None
    assert broken.diverged is not None
    assert name in broken.diverged
    assert plain.finished
    assert all(bool(value.isfinite().all()) for value in broken.model.state_dict().values())
