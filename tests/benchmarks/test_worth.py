"""Seconds to an accuracy, by numbers worked out by hand."""

from pathlib import Path

import pytest

from benchmarks.runs import Runs
from benchmarks.worth import Training, accuracies, seconds_to, table


def runs(path: Path) -> Runs:
    found = Runs(path)
    for way, epochs, lr, seed, accuracy in (
        ("plain", 4, 0.4, 0, 60.0),
        ("plain", 4, 0.4, 1, 62.0),
        ("PowerSGD", 4, 0.4, 0, 60.0),
        ("PowerSGD", 6, 0.4, 0, 62.0),
        ("ADA-GP 1:1", 4, 0.4, 0, 40.0),
        ("ADA-GP 1:1", 4, 0.1, 0, 50.0),
        ("ADA-GP 1:1", 8, 0.4, 0, 55.0),
        ("ADA-GP 1:1", 8, 0.4, 1, 57.0),
        ("ADA-GP 1:1", 8, 0.1, 0, 58.0),
    ):
        found.add(Training(way, epochs, lr, seed), {"accuracy": accuracy})
    found.add(Training("plain", 4, 0.4, 2, network="resnet8"), {"accuracy": 99.0})
    return found


def test_a_way_has_its_best_rate_among_those_that_all_seeds_have(tmp_path: Path) -> None:
    assert accuracies(runs(tmp_path / "runs.json"), "resnet20") == {
        "plain": {4: [60.0, 62.0]},
        "PowerSGD": {4: [60.0], 6: [62.0]},
        "ADA-GP 1:1": {4: [50.0], 8: [55.0, 57.0]},
    }


def test_seconds_to_what_plain_reaches(tmp_path: Path) -> None:
    # 100 batches an epoch, a tenth of them plain.
    assert seconds_to(5, way_seconds=0.1, plain_seconds=1.0) == pytest.approx(500 * (0.1 + 0.09))
    seconds = {"plain": 1.0, "PowerSGD": 0.1, "ADA-GP 1:1": 0.5}
    link = {"megabits": 100, "delay_ms": 10, "seconds": seconds, "network": "resnet20"}
    report = table(runs(tmp_path / "runs.json"), [link, link | {"delay_ms": 50, "seconds": {}}])
    assert "| ADA-GP 1:1 | 50.0 | - | 55.0, 57.0 |" in report
    assert "Seconds to 61.0 %:" in report  # PowerSGD has it after 5 epochs, between 4 and 6; ADA-GP not in 8
    assert "| 100 | 10 | 400 | 95 | more than 440 |" in report
    assert "| 100 | 50 |" not in report  # nothing was measured there


def test_processes_that_share_a_file_keep_what_the_other_added(tmp_path: Path) -> None:
    one, two = Runs(tmp_path / "runs.json"), Runs(tmp_path / "runs.json")
    for runs_of_process, seed in ((one, 0), (two, 1), (one, 2)):
        runs_of_process.add(Training("plain", 4, 0.4, seed), {"accuracy": float(seed)})
    found = Runs(tmp_path / "runs.json")
    assert [found.get(Training("plain", 4, 0.4, seed))["accuracy"] for seed in range(3)] == [0, 1, 2]  # type: ignore[index]
