"""Figures 10 to 12: the paper's steps, and the pictures of the docs."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from adagp.cli import app
from adagp.reproduce.pipeline import figure_table, panels

DOCS = Path(__file__).parents[2] / "docs"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words], env={"COLUMNS": "200"})


@pytest.mark.parametrize(("figure", "steps"), [(10, [21, 15, 32, 25]), (11, [21, 15, 32, 25]), (12, [16, 14, 26, 20])])
def test_figures_take_the_papers_steps(figure: int, steps: list[int]) -> None:
    result = call(f"fig{figure}", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["panels"]
    assert [panel["steps"] for panel in found] == steps
    stated = [panel for panel in found if panel["paper_steps"] is not None]
    assert [panel["phases"] for panel in stated] == [["BP"], ["GP", "BP"]]
    for panel in stated:
        assert panel["steps"] == panel["paper_steps"]


@pytest.mark.parametrize("figure", [10, 11, 12])
def test_pictures_of_the_docs_are_what_the_command_draws(figure: int, tmp_path: Path) -> None:
    svg, html = tmp_path / "f.svg", tmp_path / "f.html"
    result = call(f"fig{figure}", "--svg", str(svg), "--html", str(html))
    assert result.exit_code == 0, result.output
    assert svg.read_bytes() == (DOCS / f"pipeline-figure{figure}.svg").read_bytes()
    assert len(ElementTree.fromstring(svg.read_text())) > 100
    assert f"Figure {figure}" in html.read_text()
    assert f"picture: {svg}" in result.stdout


def test_table_shows_what_it_counts() -> None:
    table = figure_table(12, panels(12))
    assert table.rows[-1] == ("section 6.5, from GP to BP", "GP BP", "20", "20", "32", "1.600")
    assert table.rows[1][3] == "-"
    assert any("backward takes two" in note for note in table.notes)
