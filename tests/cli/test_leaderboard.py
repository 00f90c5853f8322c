"""`adagp leaderboard` on folders of known scores."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adagp.cli import app
from adagp.report.leaderboard import command
from adagp.training.budget.result import read_result
from tests.training.budget import making

SEEDS = (0, 1, 2, 3, 4)


def test_tables_name_the_soonest_method_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    making.write(tmp_path / "scratch", SEEDS)
    found = CliRunner().invoke(app, ["leaderboard", str(tmp_path / "scratch")])
    assert found.exit_code == 0, found.output
    lines = [line.split()[0] for line in found.output.splitlines() if line.split()]
    assert [word for word in lines if word in making.SCORES] == ["progressive", "bp", "skip"]
    assert "better, faster to the target (5 seeds)" in found.output
    assert "45 of 45 runs are finished" in found.output


def test_the_page_has_a_command_in_each_row_and_its_pictures(tmp_path: Path) -> None:
    for name in ("scratch", "tuned"):
        making.write(tmp_path / name, SEEDS[:3])
    page = tmp_path / "leaderboard.md"
    words = ["leaderboard", str(tmp_path / "scratch"), str(tmp_path / "tuned"), "--page", str(page)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    text = page.read_text()
    for method in making.SCORES:
        row = next(line for line in text.splitlines() if line.startswith(f"| {method} |"))
        assert f"`{command(read_result(tmp_path / 'scratch'), method)}`" in row
    assert "--preset demo --methods bp,progressive --seeds 0,1,2`" in text
    for name in ("scratch", "tuned"):
        assert f"](leaderboard-{name}.png)" in text
        assert (tmp_path / f"leaderboard-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in text
    assert all(len(line) <= 120 or line.startswith(("|", "![")) for line in text.splitlines())


def test_json_has_every_figure(tmp_path: Path) -> None:
    making.write(tmp_path / "scratch", SEEDS[:3])
    found = CliRunner().invoke(app, ["leaderboard", str(tmp_path / "scratch"), "--json"])
    (comparison,) = json.loads(found.stdout)["comparisons"]
    assert [method["method"] for method in comparison["methods"]] == ["bp", "progressive", "skip"]
    assert comparison["methods"][1]["speed"]["ratio"] == pytest.approx(1.4, rel=0.03)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "'nowhere' holds no comparison"),
        (["one", "one"], "a folder is named twice"),
        (["one", "--page", "absent/page.md"], "there is no folder 'absent'"),
        ([], "Missing argument"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    making.write(tmp_path / "one", SEEDS[:3])
    found = CliRunner().invoke(app, ["leaderboard", *words])
    assert found.exit_code != 0
    assert said in " ".join(found.output.split())
