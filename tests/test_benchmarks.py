import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import speed_up, verdicts


def test_speed_up_is_the_schedules_algebra() -> None:
    assert speed_up(gp=1.0, bp=3.0, plain=3.0) == pytest.approx(1.465, abs=0.002)
    assert speed_up(gp=1.0, bp=1.0, plain=1.0) == 1.0


def test_every_broken_budget_is_named() -> None:
    good = {"gp_over_forward": 1.1, "bp_over_plain": 1.05, "gp_memory_over_inference": 1.0, "speed_up_90_epochs": 1.42}
    bad = {"gp_over_forward": 1.2, "bp_over_plain": 1.11, "gp_memory_over_inference": 1.2, "speed_up_90_epochs": 1.3}
    assert verdicts({"good": good}) == []
    assert [line.split(" is ")[0] for line in verdicts({"bad": bad})] == [
        "bad: GP batch / forward",
        "bad: BP batch / plain BP",
        "bad: GP memory / inference",
        "bad: speed-up",
    ]


def test_the_command_measures_every_kind_of_batch() -> None:
    command = [sys.executable, "-m", "benchmarks", "--networks", "cnn", "--layouts", "contiguous"]
    done = subprocess.run(
        [*command, "--batch-size", "4", "--rounds", "1", "--json"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert set(found["networks"]["cnn, contiguous"]["ms"]) == {"forward", "GP", "BP plain", "BP"}
    assert (done.returncode == 0) == (found["over_budget"] == [])
