import json
from pathlib import Path

from benchmarks.equal_epochs import VGG_LRS, Case, EqualEpochs


def test_cases_have_recipes_and_folders_of_their_own(tmp_path: Path) -> None:
    cases = list(dict.fromkeys(EqualEpochs(tmp_path, tmp_path / "none.json").cases()))
    assert len({case.folder for case in cases}) == len(cases)
    recipes = [case.recipe() for case in cases]
    assert len({recipe.digest() for recipe in recipes}) == len(cases)
    assert {recipe.method for recipe in recipes} == {"bp", "sampled", "economical", "local"}


def test_the_rate_of_vgg13_is_chosen_in_short_runs(tmp_path: Path) -> None:
    study = EqualEpochs(tmp_path, tmp_path / "none.json")
    assert not [case for case in study.cases() if case.network == "vgg13" and case.length == 1]
    for number, lr in enumerate(VGG_LRS):
        folder = tmp_path / Case("vgg13", "bp", lr, length=0.25).folder
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps({"validation": float(number), "test": 1.0}))
    assert {case.lr for case in study.cases() if case.network == "vgg13" and case.length == 1} == {max(VGG_LRS)}
