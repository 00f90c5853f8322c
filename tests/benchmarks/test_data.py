import json
import subprocess
import sys
from pathlib import Path

from benchmarks import data


def test_a_broken_budget_is_told() -> None:
    assert data.over_budget(0.049) == []
    assert data.over_budget(0.0612) == ["loading takes 6.1% of a ResNet-20 batch, the budget is 5%"]


def test_the_command_measures_loading_beside_training_and_says_whether_the_budget_holds() -> None:
    command = [sys.executable, "-m", "benchmarks.data", "--batch-size", "8", "--rounds", "3", "--images", "4"]
    done = subprocess.run(
        [*command, "--threads", "1", "--json"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert found["share"] == found["load_ms"] / found["train_ms"] > 0
    assert found["decode_ms"] > 0
    assert len(found["coarse"]) == 2
    for figures in found["coarse"].values():
        assert set(figures) == {"full_ms", "half_ms", "averaged_ms", "half_ratio", "averaged_ratio"}
        assert all(figure > 0 for figure in figures.values())
    assert (done.returncode == 0) == (found["over_budget"] == [])
