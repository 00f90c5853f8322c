import shutil
import subprocess
from pathlib import Path

import pytest

from adagp.accelerator import Design
from adagp.accelerator.rtl import liberty
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.measure import small_cores
from adagp.accelerator.rtl.synthesis import check_target, synthesise
from adagp.accelerator.rtl.systolic_array import SystolicArray
from adagp.accelerator.rtl.tools import ToolError, run_yosys
from adagp.accelerator.rtl.top import Accelerator, geometries
from adagp.accelerator.rtl.verilog import verilog, waivers

needs_cells = pytest.mark.skipif(
    not liberty.LIBERTY.is_file(),
    reason="needs standard cells, which no Python package has: apt-get install qflow-tech-osu018",
)


def test_parts_of_a_kind_are_written_once():
    modules = Library().modules(Accelerator(small_cores(Design.MAX)))
    assert list(modules)[-1] == "accelerator"
    assert sum(name.startswith("pe_") for name in modules) == 1
    assert sum(text.count("cell \\pe_16_48 ") for text in modules.values()) == 4 * 3 + 3 * 2
    assert all(text.count(f"\nmodule \\{name}\n") == 1 for name, text in modules.items())


def test_the_papers_array_of_180_pes_has_180_multipliers_and_nothing_else_but_registers():
    found = synthesise(SystolicArray(CoreGeometry()), "xc7")
    assert found == {"lut": 0, "ff": 180 * 32, "dsp": 180, "ramb36": 0, "ramb18": 0}


@needs_cells
def test_the_area_of_an_array_is_that_of_its_pes():
    few, many = (synthesise(SystolicArray(CoreGeometry(2, columns)), "osu018") for columns in (1, 3))
    assert many["area_um2"] == 3 * few["area_um2"]
    assert few["sequential_cells"] == 2 * (16 + 16 + 48)
    assert 0 < few["combinational_um2"] < few["area_um2"]


@needs_cells
@pytest.mark.slow
@pytest.mark.parametrize("design", Design)
def test_designs_of_180_pes_add_what_they_are_made_of(design):
    cores = geometries(design)
    base = geometries(Design.BASELINE)
    fpga, plain = (synthesise(Accelerator(which), "xc7") for which in (cores, base))
    cells, plain_cells = (synthesise(Accelerator(which), "osu018") for which in (cores, base))
    second = 80 if design is Design.MAX else 0
    assert fpga["dsp"] - plain["dsp"] == second
    assert plain["dsp"] == 180
    more_memory = design in (Design.EFFICIENT, Design.MAX)
    assert (fpga["ramb36"] > plain["ramb36"]) == more_memory
    assert (fpga["lut"] > plain["lut"]) == (design is not Design.BASELINE)
    assert (cells["area_um2"] > plain_cells["area_um2"]) == (design is not Design.BASELINE)


@pytest.mark.parametrize("design", [Design.EFFICIENT, Design.MAX])
def test_exported_verilog_passes_a_linter_and_says_what_it_is(design, tmp_path):
    text = verilog(Accelerator(small_cores(design)))
    assert "module accelerator(" in text
    assert text.count("module pe_16_48(") == 1
    run_yosys(
        "", f"read_verilog <<END\n{text}\nEND\nhierarchy -check -top accelerator; proc; check -assert", "design.il"
    )
    path = tmp_path / "design.v"
    path.write_text(text)
    (tmp_path / "waivers.vlt").write_text(waivers())
    for tool, *arguments in (
        ("iverilog", "-g2005", "-t", "null"),
        ("verilator", "--lint-only", "-Wall", "--top-module", "accelerator", str(tmp_path / "waivers.vlt")),
    ):
        if shutil.which(tool):
            done = subprocess.run([tool, *arguments, str(path)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def test_a_missing_program_is_named_with_its_package(monkeypatch, no_yosys):
    with pytest.raises(ToolError, match=r"pip install 'adagp\[hardware\]'.*apt-get install yosys"):
        check_target("xc7")
    monkeypatch.setattr(liberty, "LIBERTY", Path("nowhere.lib"))
    with pytest.raises(ToolError, match="apt-get install qflow-tech-osu018"):
        check_target("osu018")
    with pytest.raises(ValueError, match="target='asic': is unknown; choose one of xc7, osu018"):
        check_target("asic")


def test_what_yosys_complains_of_is_passed_on():
    with pytest.raises(ToolError, match=r"yosys failed: .*No such command: nonsense"):
        run_yosys("", "nonsense", "stat")
