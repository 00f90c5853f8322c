import json
from pathlib import Path

from benchmarks.equal_epochs import RESNET_LRS, VGG_LRS, Case, EqualEpochs, image_methods


def test_cases_have_recipes_and_folders_of_their_own(tmp_path: Path) -> None:
    cases = list(dict.fromkeys(EqualEpochs(tmp_path, tmp_path / "none.json").cases()))
    assert len({case.folder for case in cases}) == len(cases)
    recipes = [case.recipe() for case in cases]
    assert len({recipe.digest() for recipe in recipes}) == len(cases)
    assert {recipe.method for recipe in recipes} == {"bp", "sampled", "economical", "local"}


def finish(folder: Path, case: Case, validation: float) -> None:
    (folder / case.folder).mkdir()
    (folder / case.folder / "scores.json").write_text(json.dumps({"validation": validation, "test": 1.0}))


def test_the_rate_of_vgg13_is_chosen_in_short_runs(tmp_path: Path) -> None:
    study = EqualEpochs(tmp_path, tmp_path / "none.json")
    assert not [case for case in study.cases() if case.network == "vgg13" and case.length == 1]
    for number, lr in enumerate(VGG_LRS):
        finish(tmp_path, Case("vgg13", "bp", lr, length=0.25), number)
    assert {case.lr for case in study.cases() if case.network == "vgg13" and case.length == 1} == {VGG_LRS[-1]}


def test_each_method_of_resnet8_has_its_own_rate(tmp_path: Path) -> None:
    study = EqualEpochs(tmp_path, tmp_path / "none.json")
    assert {case.lr for case in study.cases() if case.network == "resnet8" and case.seed} == {RESNET_LRS[0]}
    for number, lr in enumerate(RESNET_LRS):
        for case in image_methods("resnet8", lr):
            finish(tmp_path, case, number if case.method == "local" else -number)
    chosen = {(case.method, case.lr) for case in study.cases() if case.network == "resnet8" and case.seed == 2}
    first, last = RESNET_LRS[0], RESNET_LRS[-1]
    assert chosen == {("local", last)} | {(case.method, first) for case in image_methods("resnet8", first)}
