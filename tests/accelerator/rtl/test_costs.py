"""Timing, wires, switching and energy of designs in standard cells."""

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from adagp.accelerator import Design
from adagp.accelerator.rtl.activity import GateSimulation, WatchedBench
from adagp.accelerator.rtl.coverage import batch_descriptors, bins, counted
from adagp.accelerator.rtl.liberty import LIBERTY, read_cells, standard_cells
from adagp.accelerator.rtl.measure import TIMING, run_small, small_cores
from adagp.accelerator.rtl.netlist import mapped
from adagp.accelerator.rtl.pe import PE
from adagp.accelerator.rtl.power import energy, mac_energy_pj
from adagp.accelerator.rtl.timing import timing
from adagp.accelerator.rtl.top import Accelerator
from adagp.accelerator.rtl.wires import mean_length, module_wires
from adagp.schedules import Phase

needs_cells = pytest.mark.skipif(
    not LIBERTY.is_file(), reason="needs standard cells, which no Python package has: apt-get install qflow-tech-osu018"
)
needs_sta = pytest.mark.skipif(shutil.which("sta") is None, reason="needs OpenSTA: apt-get install opensta")
TINY = """
library(tiny) { /* a comment { */
  cell (AOI) {
    area : 3; cell_leakage_power : 0.5;
    pin(A) { direction : input; capacitance : 0.01; }
    pin(B) { direction : input; capacitance : 0.02; }
    pin(C) { direction : input; capacitance : 0.03; }
    pin(Y) { direction : output; capacitance : 0; function : "(!((A B)+C))";
      timing() { related_pin : "A"; timing_sense : negative_unate;
        cell_rise(t) { index_1 ("0, 1"); index_2 ("0, 2"); values ("1, 2", \\
          "3, 5"); }
        cell_fall(t) { index_1 ("0, 1"); index_2 ("0, 2"); values ("1, 2", "3, 5"); }
        rise_transition(t) { index_1 ("0, 1"); index_2 ("0, 2"); values ("1, 2", "3, 5"); }
        fall_transition(t) { index_1 ("0, 1"); index_2 ("0, 2"); values ("1, 2", "3, 5"); }
      }
    }
  }
}
"""


def test_cells_are_read_with_their_functions_and_tables(tmp_path):
    path = tmp_path / "tiny.lib"
    path.write_text(TINY)
    cell = read_cells(path)["AOI"]
    assert (cell.area_um2, cell.leakage_nw, cell.clock) == (3, 0.5, "")
    assert [pin.capacitance_pf for pin in cell.inputs.values()] == [0.01, 0.02, 0.03]
    (output,) = cell.outputs.values()
    for a, b, c in product((0, 1), repeat=3):
        assert output.function({"A": a, "B": b, "C": c}, 1) == (not ((a and b) or c))
    rise = output.arcs[0].delay[0]
    assert output.arcs[0].inverts
    assert rise.at(0.5, 1) == pytest.approx((1 + 2 + 3 + 5) / 4)
    assert rise.at(2, 0) == pytest.approx(5)  # beyond its end


def test_connections_are_as_long_as_donath_says():
    assert mean_length(4) == pytest.approx(4 / 3)  # two by two: neighbours, and neighbours across
    assert mean_length(1000) > mean_length(100) > mean_length(10)
    assert mean_length(10_000, 0.8) > mean_length(10_000, 0.5 + 1e-9)


def test_the_programs_contain_every_kind_of_descriptor():
    found = counted(batch_descriptors())
    assert list(found) == bins()
    assert [name for name, count in found.items() if not count] == []
    assert set(counted([]).values()) == {0}


@pytest.fixture(scope="module")
def pe():
    """A small PE in standard cells."""
    return mapped(PE(4, 8))


@needs_cells
def test_gates_compute_what_a_pe_does_in_many_instances_at_once(pe):
    rng, instances = np.random.default_rng(0), 20
    (netlist,) = pe.values()
    gates = GateSimulation(netlist, instances)

    def drive(port, values):
        for place, net in enumerate(netlist.ports[port].nets):
            gates.set(net, sum((int(value) >> place & 1) << bit for bit, value in enumerate(values)))

    weights = rng.integers(-8, 8, instances)
    drive("weight_below", weights)
    drive("load", np.ones(instances, int))
    gates.settle()
    gates.clock()
    drive("load", np.zeros(instances, int))
    for _ in range(10):
        inputs, sums = rng.integers(-8, 8, instances), rng.integers(-64, 64, instances)
        drive("input_left", inputs)
        drive("sum_above", sums)
        gates.settle()
        gates.clock()
        gates.settle()
        nets = netlist.ports["sum_below"].nets
        sent = [sum((gates.values[net] >> bit & 1) << place for place, net in enumerate(nets)) for bit in range(20)]
        assert sent == [int(value) for value in (sums + inputs * weights) & 255]


@needs_cells
def test_energy_grows_with_changes_and_the_clock_always_ticks(pe):
    (netlist,) = pe.values()
    gates = GateSimulation(netlist, 1)
    gates.settle()
    for _ in range(3):
        gates.clock()
        gates.activity.cycles += 1
    idle = energy(pe, {netlist.name: gates.activity}, 3, 1)
    assert idle.switching_pj == 0
    assert idle.clock_pj > 0
    gates.set(netlist.ports["input_left"].nets[0], 1)
    gates.settle()
    gates.clock()
    busy = energy(pe, {netlist.name: gates.activity}, 3, 1)
    assert busy.switching_pj > 0
    assert busy.internal_pj > idle.internal_pj
    assert busy.clock_pj == idle.clock_pj


@needs_cells
def test_wires_take_time_area_and_energy(pe):
    name = next(iter(pe))
    wires = module_wires(pe)[name]
    assert wires.area_um2 > 0
    assert timing(pe)[name].inside.ns > timing(pe, wires=False)[name].inside.ns


def _verilog(netlist):
    """A netlist for OpenSTA; every bit of a port is a port."""
    inputs = {
        net: f"p_{name}_{place}"
        for name, port in netlist.ports.items()
        if port.is_input
        for place, net in enumerate(port.nets)
    }

    def wire(net):
        return inputs.get(net, f"1'b{net}" if isinstance(net, str) else f"n{net}")

    outs = [(f"p_{n}_{i}", net) for n, p in netlist.ports.items() if not p.is_input for i, net in enumerate(p.nets)]
    lines = [f"module {netlist.name} ({', '.join([*inputs.values(), *(name for name, _ in outs)])});"]
    lines += [f"input {name};" for name in inputs.values()] + [f"output {name};" for name, _ in outs]
    nets = {net for gate in netlist.gates for pins in gate.pins.values() for net in pins if isinstance(net, int)}
    lines += [f"wire n{net};" for net in nets - set(inputs)] + [f"assign {name} = {wire(net)};" for name, net in outs]
    for place, gate in enumerate(netlist.gates):
        pins = ", ".join(f".{pin}({wire(nets[0])})" for pin, nets in gate.pins.items())
        lines.append(f"{gate.kind} g{place} ({pins});")
    return "\n".join([*lines, "endmodule"])


@needs_cells
@needs_sta
@pytest.mark.parametrize("widths", [(4, 8), pytest.param((16, 48), marks=pytest.mark.slow)])
def test_the_longest_path_is_opensta_s_within_a_percent(widths, tmp_path):
    modules = mapped(PE(*widths))
    (netlist,) = modules.values()
    (tmp_path / "design.v").write_text(_verilog(netlist))
    (tmp_path / "script.tcl").write_text(
        f"read_liberty {LIBERTY}\nread_verilog design.v\nlink_design {netlist.name}\n"
        "create_clock -name c -period 0 p_clk_0\nset_load 0.05 [all_outputs]\n"
        "report_checks -path_delay max -digits 4\nexit\n"
    )
    done = subprocess.run(
        ["sta", "-no_splash", "-exit", "script.tcl"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    slack = float(re.search(r"(-[\d.]+)\s+slack", done.stdout)[1])
    assert timing(modules, wires=False)[netlist.name].inside.ns == pytest.approx(-slack, rel=0.01)


@needs_cells
@pytest.mark.slow
def test_gates_do_what_the_rtl_does_and_a_wrong_gate_is_seen():
    cores = small_cores(Design.LOW)
    modules = mapped(Accelerator(cores))
    bench = WatchedBench(cores, modules, TIMING)
    run_small(Design.LOW, Phase.GP, bench)
    assert all(each.differences == 0 and each.cycles for each in bench.activity.values())
    lane = next(name for name in modules if name.startswith("lane_"))
    gates = list(modules[lane].gates)
    place = next(place for place, gate in enumerate(gates) if gate.kind == "NAND2X1")
    gates[place] = replace(gates[place], kind="NOR2X1")
    bench = WatchedBench(cores, {**modules, lane: replace(modules[lane], gates=tuple(gates))}, TIMING)
    run_small(Design.LOW, Phase.GP, bench)
    assert bench.activity[lane].differences > 0


@needs_cells
@pytest.mark.slow
def test_a_multiply_accumulate_takes_tens_of_picojoules():
    assert 10 < mac_energy_pj(50) < 200
    assert len(standard_cells()) == 32
