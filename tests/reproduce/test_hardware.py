import json

import pytest
from typer.testing import CliRunner

from adagp.accelerator import Design
from adagp.accelerator.rtl.power import BatchEnergy
from adagp.cli import app
from adagp.reproduce import hardware, power


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
    monkeypatch.setattr("adagp.accelerator.rtl.tools.Tool.version", lambda tool: "9.9")
    done = CliRunner().invoke(app, ["reproduce", f"table{table}", "--array", "4x3", "--json"])
    assert done.exit_code == 0, done.output
    assert asked == [(table, (4, 3), (8, 10))]
    found = json.loads(done.stdout)
    assert found["ours"] == found["paper"]
    assert found["yosys"] == "9.9"
    assert list(found["ours"]) == ["baseline", "low", "efficient", "max"]


def test_power_stands_beside_the_papers_with_its_slip():
    parts = ("internal", "switching", "leakage", "logic", "buffers", "logic and buffers")
    ours = {design: dict.fromkeys(parts, 1 + 0.1 * place) for place, design in enumerate(Design)}
    table = power.power_table(ours, "bp")
    rows = {row[:2]: row[2:] for row in table.rows}
    assert rows["low", "leakage"] == ("+10.0", "+1.5", "+0.0")
    assert rows["efficient", "buffers"] == ("+20.0", "", "+38.9")
    assert rows["max", "logic"] == ("+30.0", "+13.4", "")
    assert [rows[design, "logic and buffers"][2] for design in ("low", "efficient", "max")] == ["+0.9", "+3.6", "+3.9"]
    assert any("0.119 W less than the total, in every design" in note for note in table.notes)
    with_gp = power.power_table(ours, "gp")
    assert "GP, and the baseline's BP" in with_gp.notes[0]


def test_one_design_alone_is_not_compared(monkeypatch):
    batch = BatchEnergy(10, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1, 0)
    monkeypatch.setattr("adagp.accelerator.rtl.power.mac_energy_pj", lambda: 100.0)
    monkeypatch.setattr("adagp.accelerator.rtl.power.batch_energy", lambda *sizes: batch)
    one = CliRunner().invoke(app, ["hardware", "power", "--design", "low"])
    assert one.exit_code == 0, one.output
    assert "table 5b" not in one.stdout
    every = CliRunner().invoke(app, ["hardware", "power", "--phase", "bp"])
    assert "table 5b" in every.stdout
    assert max(map(len, every.stdout.splitlines())) <= 80
    found = json.loads(CliRunner().invoke(app, ["hardware", "power", "--json"]).stdout)
    assert found["ours_mw"]["max"]["buffers"] == pytest.approx(6 * 100 / (10 * 20))
    assert found["table_4b_w"]["low"]["total"] == 3.745
