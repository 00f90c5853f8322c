import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import approximation
from benchmarks.__main__ import interval, main, speed_up, verdicts


def test_speed_up_is_the_schedules_algebra() -> None:
    assert speed_up(gp=1.0, bp=3.0, plain=3.0) == pytest.approx(1.465, abs=0.002)
    assert speed_up(gp=1.0, bp=1.0, plain=1.0) == 1.0


@pytest.mark.parametrize("count", [6, 24, 60])
def test_the_interval_holds_the_true_median_in_95_of_100_runs(count: int) -> None:
    draw = random.Random(count)
    runs = [interval([draw.expovariate(1.0) for _ in range(count)]) for _ in range(2000)]
    held = sum(low <= 0.6931 <= high for low, high in runs) / len(runs)  # ln 2, the median of that distribution
    assert 0.93 < held < 0.98


def test_every_broken_budget_is_named() -> None:
    names = (
        "gp_over_forward",
        "bp_over_plain",
        "coarse_over_plain",
        "gp_memory_over_inference",
        "speed_up_90_epochs",
    )
    good = dict(zip(names, (1.1, 1.05, 0.32, 1.0, 1.42), strict=True))
    bad = dict(zip(names, (1.11, 1.06, 0.33, 1.2, 1.3), strict=True))
    assert verdicts({"good": good}) == []
    assert [line.split(" is ")[0] for line in verdicts({"bad": bad})] == [
        "bad: GP batch / forward",
        "bad: BP batch / plain BP",
        "bad: half-size BP batch / plain BP",
        "bad: GP memory / inference",
        "bad: speed-up",
    ]


def test_the_command_measures_every_kind_of_batch() -> None:
    command = [sys.executable, "-m", "benchmarks", "--networks", "cnn", "--layouts", "contiguous"]
    done = subprocess.run(
        [*command, "--batch-size", "4", "--rounds", "6", "--json"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert set(found["networks"]["cnn, contiguous"]["ms"]) == {"forward", "GP", "BP plain", "BP", "coarse"}
    assert (done.returncode == 0) == (found["over_budget"] == [])
    assert "6 rounds of about " in done.stderr


def test_too_few_rounds_for_an_interval_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--rounds", "5"])
    with pytest.raises(SystemExit):
        main()
    assert "--rounds must be at least 6" in capsys.readouterr().err


def test_the_approximation_benchmark_measures_every_kind_of_batch() -> None:
    command = [sys.executable, "-m", "benchmarks.approximation", "--networks", "cnn2", "--batch-size", "4"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--json"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    kinds = {f"{source} {schedule}" for source in ("zero", "random", "topk") for schedule in ("1", "3")}
    kinds |= {"plain", "exact", "exact after zero 3", "skipped 1", "skipped 3"}
    assert set(found["networks"]["cnn2"]["ms"]) == kinds
    assert (done.returncode == 0) == (found["missed"] == [])


def test_every_missed_goal_of_approximating_is_named() -> None:
    good = {"saved_share": {"1": 0.71, "3": 0.9}, "switch": 1.02}
    bad = {"saved_share": {"1": 0.69, "3": 0.9}, "switch": 1.06}
    assert approximation.verdicts({"good": good}) == []
    assert [line.split(" ")[0] for line in approximation.verdicts({"bad": bad})] == ["bad,", "bad:"]
