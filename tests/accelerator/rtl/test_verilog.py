"""The Verilog that is exported, in Icarus, cycle by cycle against what Amaranth simulated."""

import shutil
import subprocess

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'adagp[hardware]'")

from amaranth.hdl import Value
from amaranth.lib.wiring import Flow
from amaranth.sim import Simulator

from adagp.accelerator import Design
from adagp.accelerator.rtl import batches, testbench
from adagp.accelerator.rtl.designs import Accelerator
from adagp.accelerator.rtl.measure import batch_stages, small_batch, small_cores
from adagp.accelerator.rtl.verilog import verilog
from adagp.schedules import Phase

needs_tools = pytest.mark.skipif(
    not (shutil.which("yosys") and shutil.which("iverilog")), reason="needs both: apt-get install yosys iverilog"
)
BENCH = """
module bench;
  reg clk = 0;
  reg [{ins}-1:0] stimuli [0:{cycles}-1];
  reg [{outs}-1:0] expected [0:{cycles}-1];
  reg [{outs}-1:0] care [0:{cycles}-1];
  reg [{ins}-1:0] in; wire [{outs}-1:0] out;
  integer t, wrong = 0;
  accelerator dut(.clk(clk), .rst(1'b0), {ports});
  initial begin
    $readmemb("stimuli", stimuli); $readmemb("expected", expected); $readmemb("care", care);
    for (t = 0; t < {cycles}; t = t + 1) begin
      in = stimuli[t]; #1;
      if (((out ^ expected[t]) & care[t]) !== {outs}'b0) wrong = wrong + 1;
      clk = 1; #1; clk = 0; #1;
    end
    $display("cycles=%0d wrong=%0d", t, wrong);
    $finish;
  end
endmodule
"""


def recorded(cores, programs, monkeypatch):
    """Every port in every cycle of a simulation: names and flows, and rows of values."""
    ports, cycles = [], []

    class Recorder(Simulator):
        def __init__(self, design):
            super().__init__(design)
            for path, member, value in design.signature.flatten(design):
                ports.append(("__".join(map(str, path)), member.flow, Value.cast(value)))

            async def record(context):
                ticks = context.tick().sample(*(value for *_, value in ports))
                async for _, _, *values in ticks:
                    cycles.append(values)

            self.add_process(record)

    monkeypatch.setattr(testbench, "Simulator", Recorder)
    testbench.Bench(cores).run(programs)
    return ports, cycles


def bits(value, width):
    return format(value & ((1 << width) - 1), f"0{width}b")


@needs_tools
@pytest.mark.parametrize("design", [Design.EFFICIENT, pytest.param(Design.MAX, marks=pytest.mark.slow)])
def test_the_verilog_does_what_was_simulated(design, monkeypatch, tmp_path):
    cores, (network, batch) = small_cores(design), small_batch()
    stages = batch_stages(design, Phase.GP, network, batch, cores)
    unit = list(cores)[-1]
    load = {unit: batches.predictor_passes(network, batch, cores).load()}
    ports, cycles = recorded(cores, batches.program([load, *stages], list(cores)), monkeypatch)
    names = [name for name, *_ in ports]
    lines = {"stimuli": [], "expected": [], "care": []}
    for values in cycles:
        now = dict(zip(names, values, strict=True))
        row = {"stimuli": "", "expected": "", "care": ""}
        for name, flow, signal in reversed(ports):
            word = bits(now[name], len(signal))
            if flow is Flow.In:
                row["stimuli"] += word
            else:
                row["expected"] += word
                core, _, port = name.partition("_")
                cares = not port.startswith("results__") or now[f"{core}_results_valid"]
                row["care"] += ("1" if cares else "0") * len(signal)
        for kind, line in row.items():
            lines[kind].append(line)
    for kind, rows in lines.items():
        (tmp_path / kind).write_text("\n".join(rows))
    places, connections = {Flow.In: 0, Flow.Out: 0}, []
    for name, flow, signal in ports:
        bus, low = ("in" if flow is Flow.In else "out"), places[flow]
        connections.append(f".{name}({bus}[{low + len(signal) - 1}:{low}])")
        places[flow] += len(signal)
    text = BENCH.format(ins=places[Flow.In], outs=places[Flow.Out], cycles=len(cycles), ports=", ".join(connections))
    (tmp_path / "bench.v").write_text(verilog(Accelerator(cores)) + text)
    subprocess.run(["iverilog", "-o", "bench", "-s", "bench", "bench.v"], cwd=tmp_path, check=True)

    def replayed():
        return subprocess.run(["vvp", "-n", "bench"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert len(cycles) > 1000
    assert f"cycles={len(cycles)} wrong=0" in replayed()
    (tmp_path / "stimuli").write_text("\n".join(["0" * places[Flow.In], *lines["stimuli"][1:]]))
    assert "wrong=0" not in replayed()  # without its first descriptor it does something else
