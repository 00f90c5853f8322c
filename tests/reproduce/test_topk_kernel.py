"""The measurement's own arithmetic, and that the benchmark runs; what it finds belongs to a quiet machine."""

import json
import sys

import pytest
from typer.testing import CliRunner, Result

from adagp.cli import app
from adagp.reproduce import topk_kernel
from adagp.reproduce.topk_kernel import TABLE_1, Shape, Timing, measure, shortfalls
from benchmarks.kernels import main


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words])


def timings(*speed_ups: float) -> list[Timing]:
    return [Timing(shape, "contiguous", "gather", x, 1.0) for shape, x in zip(TABLE_1, speed_ups, strict=True)]


def test_the_papers_speed_ups_follow_from_its_times() -> None:
    for shape in TABLE_1:
        assert shape.paper_dense / shape.paper_topk == pytest.approx(shape.paper_speed_up, abs=0.1)


def test_the_goal_is_met_by_six_fast_shapes_and_two_quicker_ones() -> None:
    assert shortfalls(timings(3, 3, 3, 3, 3, 3, 1.1, 1.1)) == []


def test_each_way_to_miss_the_goal_is_told() -> None:
    assert shortfalls(timings(3, 3, 3, 3, 3, 2.9, 2.9, 2.9)) == ["contiguous: only 5 of 8 shapes are 3 x faster"]
    assert shortfalls(timings(9, 9, 9, 9, 9, 9, 9, 0.8)) == [
        "64 -> 64, 8 x 8, contiguous: topk is slower than dense (0.80 x)"
    ]


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_both_ways_are_timed(layout: str, device: str) -> None:
    timing = measure(Shape(4, 6, 5, 1.0, 1.0, 1.0), 3, layout, batch_size=2, device=device)
    assert timing.dense_seconds > 0
    assert timing.topk_seconds > 0
    assert timing.speed_up == timing.dense_seconds / timing.topk_seconds
    assert timing.layout == layout


def test_the_benchmark_prints_every_shape(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["benchmarks.kernels", "--rounds", "1", "--batch-size", "1", "--layouts", "contiguous"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    code = main()
    printed = json.loads(capsys.readouterr().out)
    assert [row["shape"] for row in printed["shapes"]] == [str(shape) for shape in TABLE_1]
    assert code == bool(printed["missing"])
    monkeypatch.setattr(sys, "argv", arguments)
    main()
    assert capsys.readouterr().out.count("| 512 -> 512") == 2


def test_table_one_sets_ours_beside_the_papers() -> None:
    timing = Timing(TABLE_1[3], "contiguous", "compiled", 0.004, 0.001)
    table = topk_kernel.kernel_table([timing], "a machine")
    assert table.rows[0][1:] == ("contiguous", "compiled", "4.00", "1.00", "4.0", "10.4")
    assert "a machine" in table.notes[0]


def test_the_kernel_command_measures_all_shapes() -> None:
    done = call("approximation-kernel", "--rounds", "1", "--layout", "channels-last", "--threads", "1", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["tables"][0]["rows"]
    assert [row[0] for row in rows] == [str(shape) for shape in TABLE_1]
    assert all(float(row[3]) > 0 and float(row[4]) > 0 for row in rows)


def test_the_help_names_every_layout() -> None:
    """It is written out, as the layouts themselves are torch's."""
    shown = " ".join(call("approximation-kernel", "--help").output.replace("│", " ").split())
    assert f"Only one of {', '.join(topk_kernel.LAYOUTS)}." in shown
