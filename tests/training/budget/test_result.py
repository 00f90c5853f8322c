"""From a folder of known scores to the figures of every method."""

import math
from pathlib import Path

import pytest

from adagp.training import RunFolderError
from adagp.training.budget.result import read_result
from tests.training.budget import making

SEEDS = (0, 1, 2, 3, 4)


def test_figures_of_a_complete_comparison(tmp_path: Path) -> None:
    making.write(tmp_path / "run", SEEDS)
    result = read_result(tmp_path / "run")
    assert result.is_complete
    assert result.target is not None
    assert result.target.score == pytest.approx(0.60, abs=2e-3)
    by_name = {outcome.method: outcome for outcome in result.methods}
    assert by_name["bp"].reached.seconds == pytest.approx(70, rel=0.02)
    assert by_name["progressive"].reached.at_most is False or by_name["progressive"].reached.seconds == 50
    assert by_name["skip"].reached.seconds is None
    faster = by_name["progressive"]
    assert faster.speed is not None
    assert faster.speed.ratio == pytest.approx(1.4, rel=0.03)
    assert faster.speed.p is not None
    assert faster.speed.p < 0.01
    assert faster.gain is not None
    assert faster.gain.mean == pytest.approx(0.06, abs=2e-3)
    assert faster.verdict == "better, faster to the target (5 seeds)"
    assert by_name["skip"].verdict == "worse, target not reached (5 seeds)"
    assert faster.train_loss == pytest.approx(0.24, abs=2e-3)
    assert not faster.at_edge
    assert faster.candidate.lr == 0.2
    assert all(math.isclose(run.seconds, 100 * run.share) for run in faster.runs)


def test_a_rival_at_the_edge_of_the_grid_is_not_tuned(tmp_path: Path) -> None:
    making.write(tmp_path / "run", SEEDS, best_rate=0.1)
    result = read_result(tmp_path / "run")
    assert all(outcome.at_edge for outcome in result.methods)
    verdicts = {outcome.method: outcome.verdict for outcome in result.methods}
    assert verdicts["progressive"].startswith("better, faster to the target (5 seeds); bp's rate is at the edge")
    assert "edge" not in verdicts["bp"]


def test_three_seeds_are_so_far_and_what_lacks_is_left_out(tmp_path: Path) -> None:
    making.write(tmp_path / "run", SEEDS[:3], missing=("skip",))
    result = read_result(tmp_path / "run")
    assert (result.finished, result.planned) == (18, 27)
    assert [outcome.method for outcome in result.methods] == ["bp", "progressive"]
    assert result.methods[1].verdict.startswith("so far: better")


def test_folders_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no comparison: name a folder"):
        read_result(tmp_path)
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(RunFolderError, match="a comparison of another protocol"):
        read_result(tmp_path)
    making.write(tmp_path / "run", SEEDS[:1])
    (tmp_path / "run" / "runs" / "bp-share1-seed0" / "metrics.json").write_text("[{}]")
    with pytest.raises(RunFolderError, match="remove the folder to run it again"):
        read_result(tmp_path / "run")
    (tmp_path / "run" / "budget.json").write_text('{"recipe": 3}')
    with pytest.raises(RunFolderError, match="describes no comparison"):
        read_result(tmp_path / "run")
