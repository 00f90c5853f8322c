import json
from pathlib import Path

import pytest

from adagp.schedules import Phase
from adagp.training.planning import build_schedule, recipe_outline
from benchmarks.converged import EPOCHS, SHORT_EPOCHS, Case, Converged


def test_cases_are_those_that_the_claim_needs(tmp_path: Path) -> None:
    cases = list(Converged(tmp_path, tmp_path / "none.json").cases())
    assert len({case.folder for case in cases}) == len(cases)
    recipes = [case.recipe() for case in cases]
    assert len({recipe.digest() for recipe in recipes}) == len(cases)
    seeds = {(case.rate, case.method): 1 + case.seed for case in sorted(cases, key=lambda case: case.seed)}
    assert seeds == {
        (rate, method): 1 if method in ("short-bp", "mean") else 2
        for rate in ("tuned", "paper")
        for method in ("bp", "adagp", "skip", "mean", "short-bp", "progressive")
    }
    assert all(recipe.train_limit is None for recipe in recipes), "complete CIFAR-10"


def test_short_bp_takes_the_time_of_adagp() -> None:
    recipe = Case("adagp", "tuned").recipe()
    schedule = build_schedule(recipe, recipe_outline(recipe), EPOCHS * 390, 390)
    share = sum(schedule(step).phase is Phase.GP for step in range(EPOCHS * 390)) / (EPOCHS * 390)
    assert share == pytest.approx(0.43, abs=0.005)
    assert round(EPOCHS * (0.34 * share + 1.03 * (1 - share))) == SHORT_EPOCHS


def test_the_table_shows_scores_and_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = Converged(tmp_path, tmp_path / "none.json")
    for seed, test in ((0, 90.0), (1, 91.0)):
        folder = tmp_path / Case("bp", "tuned", seed).folder
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps({"test": test, "curve": list(map(float, range(1, EPOCHS + 1)))}))
    study.table()
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == "| tuned | bp | 90.00, 91.00 | 90.50 | 5.0, 10.0, 15.0, 20.0, 25.0 |"
