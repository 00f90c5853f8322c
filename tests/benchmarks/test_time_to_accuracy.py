import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.time_to_accuracy import NETWORKS, Case, Network, TimeToAccuracy

CASE = Case("resnet20", "bp", 8, 0.2)


def finish(folder: Path, case: Case, validation: float) -> None:
    (folder / case.folder).mkdir(parents=True)
    (folder / case.folder / "scores.json").write_text(json.dumps({"validation": validation, "test": 1.0}))


def test_collected_runs_count_on_another_machine(tmp_path: Path) -> None:
    here, file = tmp_path / "here", tmp_path / "collected.json"
    for case, validation in ((CASE, 70.0), (Case("resnet20", "bp", 8, 0.4), 71.0)):
        finish(here, case, validation)
        TimeToAccuracy(here, collected=file).collect()
    elsewhere = TimeToAccuracy(tmp_path / "elsewhere", collected=file)
    assert elsewhere.result(CASE) == {"validation": 70.0, "test": 1.0}
    assert elsewhere.claim(CASE) is None
    assert not (tmp_path / "elsewhere" / CASE.folder).exists()


CLAIM = """
import sys
from pathlib import Path
from benchmarks.time_to_accuracy import Case, TimeToAccuracy

study = TimeToAccuracy(Path(sys.argv[1]), collected=Path(sys.argv[1]) / "none.json")
claims = [study.claim(Case("resnet20", "bp", 8, lr)) for lr in (0.2, 0.4)]
print([claim is not None for claim in claims])
"""


def test_a_claimed_case_is_left_to_the_process_that_runs_it(tmp_path: Path) -> None:
    claimed = TimeToAccuracy(tmp_path, collected=tmp_path / "none.json").claim(CASE)
    assert claimed is not None
    done = subprocess.run(
        [sys.executable, "-c", CLAIM, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[False, True]"


def test_rates_are_chosen_once_all_are_there(tmp_path: Path) -> None:
    network = NETWORKS[0]
    study = TimeToAccuracy(tmp_path, (network,), tmp_path / "none.json")
    assert {case.seed for case in study.cases()} == {0}
    for number, lr in enumerate(network.rates):
        for method, epochs in (("bp", 8), ("progressive", 10)):
            finish(tmp_path, Case("resnet20", method, epochs * network.tuning, lr), 70.0 + number)
    chosen = {case.lr for case in study.cases() if case.seed == 1}
    assert chosen == {max(network.rates)}


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_every_case_has_a_recipe(network: Network, tmp_path: Path) -> None:
    for case in TimeToAccuracy(tmp_path, (network,), tmp_path / "none.json").cases():
        assert case.recipe().method == case.method
