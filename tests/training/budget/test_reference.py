"""Costs that are added later are counted in the seconds of the first measurement."""

from pathlib import Path

import pytest
import torch

from adagp.data import DataSet
from adagp.training import Recipe, Session
from adagp.training.budget import reference as module
from adagp.training.budget.reference import complete_reference, stored_reference
from adagp.training.comparison.calibrate import Calibration, quieter_half


def test_a_machine_that_is_slower_by_then_makes_no_method_dearer(
    tmp_path: Path, recipe: Recipe, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = 1.0
    costs = {"bp": {"BP": 0.3}, "skip": {"BP": 0.3, "GP": 0.0}, "adagp": {"BP": 0.33, "GP": 0.1}}

    def measured(recipes: dict[str, Recipe], *_: object) -> Calibration:
        found = {label: {kind: pace * cost for kind, cost in costs[label].items()} for label in recipes}
        return Calibration(found, {}, "by hand")

    monkeypatch.setattr(module, "measure", measured)

    def completed(*names: str) -> module.Reference:
        recipes = {name: recipe.replace(method=name) for name in names}
        return complete_reference(recipes, "bp", digits, tmp_path, device=torch.device("cpu"), session=Session())

    first = completed("bp", "skip")
    assert first.budget_seconds == pytest.approx(2 * 15 * 0.3)
    pace = 3.0  # a busy machine
    second = completed("bp", "skip", "adagp")
    assert second.costs["adagp"].seconds == pytest.approx({"BP": 0.33, "GP": 0.1})
    assert {name: second.costs[name] for name in ("bp", "skip")} == first.costs
    assert stored_reference(tmp_path) == second
    assert second.steps("bp", recipe.replace(method="bp"), 0.5) == 15
    spent = second.seconds("adagp", {"WARMUP": 2, "BP": 1, "GP": 3, "COARSE": 0, "MIXED": 0})
    assert spent == pytest.approx(3 * 0.33 + 3 * 0.1)


def test_disturbed_rounds_are_left_out_for_all_methods_alike() -> None:
    quiet, loud = {"bp": [0.3], "skip": [0.2]}, {"bp": [0.3], "skip": [2.0]}
    assert quieter_half([loud, quiet, loud, quiet, loud]) == [quiet, quiet, loud]
