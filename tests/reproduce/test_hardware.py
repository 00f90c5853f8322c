import json

import pytest
from typer.testing import CliRunner

from adagp.accelerator import Design
from adagp.cli import app
from adagp.reproduce import hardware


def test_the_papers_increases_are_those_it_states():
    low, efficient, fastest = (
        [row[5:] for row in hardware.resources_table(5, hardware.PAPER_TABLE_5, "", "9.9").rows if row[0] == design]
        for design in ("low", "efficient", "max")
    )
    assert [rows[4][2] for rows in (low, efficient, fastest)] == ["+1.8", "+2.7", "+8.3"]  # printed as 1.7, 2.6, 8.3
    table = {row[:2]: row[5:] for row in hardware.resources_table(4, hardware.PAPER_TABLE_4, "", "9.9").rows}
    assert table["low", "LUT"] == ("489,286", "+17,282", "+3.7")
    assert table["efficient", "RAMB36"] == ("2,407", "+1,080", "+81.4")
    assert table["max", "DSP48E1"] == ("246", "+80", "+48.2")


def test_ours_stand_beside_the_papers_without_what_we_cannot_tell():
    ours = {design: {"area_um2": 100 + place, "combinational_um2": 50} for place, design in enumerate(Design)}
    found = hardware.resources_table(5, ours, "", "9.9")
    table = {row[:2]: row[2:5] for row in found.rows}
    assert table["max", "all cells"] == ("103", "+3", "+3.0")
    assert table["baseline", "all cells"] == ("100", "", "")
    assert table["max", "with wires"] == ("", "", "")
    assert "yosys 9.9," in found.notes[0]


@pytest.mark.parametrize("table", [4, 5])
def test_the_command_sets_four_designs_beside_the_papers(table, monkeypatch):
    asked = []

    def synthesised(which, array, second_array, tell):
        asked.append((which, array, second_array))
        return hardware.PAPER[which]

    monkeypatch.setattr("adagp.cli.reproduce.hardware.synthesised", synthesised)
    monkeypatch.setattr("adagp.cli.reproduce.hardware.yosys_version", lambda: "9.9")
    done = CliRunner().invoke(app, ["reproduce", f"table{table}", "--array", "4x3", "--json"])
    assert done.exit_code == 0, done.output
    assert asked == [(table, (4, 3), (8, 10))]
    found = json.loads(done.stdout)
    assert found["ours"] == found["paper"]
    assert found["yosys"] == "9.9"
    assert list(found["ours"]) == ["baseline", "low", "efficient", "max"]
