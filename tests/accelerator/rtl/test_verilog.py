"""The Verilog that is exported, cycle by cycle against what Amaranth simulated."""

import shutil
import subprocess

import pytest
from amaranth.hdl import Value
from amaranth.lib.wiring import Flow
from amaranth.sim import Simulator

from adagp.accelerator import Design
from adagp.accelerator.rtl import testbench
from adagp.accelerator.rtl.geometry import ADDRESS_BITS
from adagp.accelerator.rtl.loader import WORDS_BITS
from adagp.accelerator.rtl.measure import TIMING, run_small, small_cores
from adagp.accelerator.rtl.top import Accelerator
from adagp.accelerator.rtl.verilog import verilog
from adagp.schedules import Phase
from tests.accelerator.rtl.netlist import simulator

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


def recorded(design, phase, monkeypatch):
    """Every port of a simulation with its flow, and the values of all of them in every cycle, by name."""
    ports, cycles = [], []

    class Recorder(Simulator):
        def __init__(self, design):
            super().__init__(design)
            for path, member, value in design.signature.flatten(design):
                ports.append(("__".join(map(str, path)), member.flow, Value.cast(value)))

            async def record(context):
                ticks = context.tick().sample(*(value for *_, value in ports))
                async for _, _, *values in ticks:
                    cycles.append(dict(zip((name for name, *_ in ports), values, strict=True)))

            self.add_process(record)

    monkeypatch.setattr(testbench, "Simulator", Recorder)
    run_small(design, phase, testbench.Bench(small_cores(design), TIMING))
    return ports, cycles


def bits(value, width):
    return format(value & ((1 << width) - 1), f"0{width}b")


def cares(name, signal, now):
    """The bits of an output that say anything: a payload while it is valid, and of a write the words it counts."""
    channel, _, port = name.rpartition("__")
    if port != "payload":
        return (1 << len(signal)) - 1
    if not now[f"{channel}__valid"]:
        return 0
    if not channel.endswith("writes"):
        return (1 << len(signal)) - 1
    words = now[name] >> ADDRESS_BITS & (1 << WORDS_BITS) - 1
    return (1 << ADDRESS_BITS + WORDS_BITS + 16 * words) - 1


def wrong_in_netlist(text, ports, cycles, tmp_path):
    """Cycles in which the Verilog, as yosys reads it, has another output than was recorded."""
    cycle, wrong = simulator(text, "accelerator"), 0
    widths = {name: (1 << len(signal)) - 1 for name, _, signal in ports}
    for now in cycles:
        inputs = {name: now[name] & widths[name] for name, flow, _ in ports if flow is Flow.In}
        outputs = cycle({"clk": 0, "rst": 0, **inputs})
        wrong += any(
            (outputs[name] ^ now[name]) & cares(name, signal, now) for name, flow, signal in ports if flow is Flow.Out
        )
    return wrong


def wrong_in_icarus(text, ports, cycles, tmp_path):
    """The same, counted by Icarus."""
    lines = {"stimuli": [], "expected": [], "care": []}
    for now in cycles:
        row = {"stimuli": "", "expected": "", "care": ""}
        for name, flow, signal in reversed(ports):
            word = bits(now[name], len(signal))
            if flow is Flow.In:
                row["stimuli"] += word
            else:
                row["expected"] += word
                row["care"] += bits(cares(name, signal, now), len(signal))
        for kind, line in row.items():
            lines[kind].append(line)
    for kind, rows in lines.items():
        (tmp_path / kind).write_text("\n".join(rows))
    places, connections = {Flow.In: 0, Flow.Out: 0}, []
    for name, flow, signal in ports:
        bus, low = ("in" if flow is Flow.In else "out"), places[flow]
        connections.append(f".{name}({bus}[{low + len(signal) - 1}:{low}])")
        places[flow] += len(signal)
    bench = BENCH.format(ins=places[Flow.In], outs=places[Flow.Out], cycles=len(cycles), ports=", ".join(connections))
    (tmp_path / "bench.v").write_text(text + bench)
    subprocess.run(["iverilog", "-o", "bench", "-s", "bench", "bench.v"], cwd=tmp_path, check=True)
    done = subprocess.run(["vvp", "-n", "bench"], cwd=tmp_path, capture_output=True, text=True, check=True)
    return int(done.stdout.partition("wrong=")[2])


@pytest.mark.parametrize("wrong_cycles", [wrong_in_netlist, *([wrong_in_icarus] if shutil.which("iverilog") else [])])
@pytest.mark.parametrize("design", [Design.EFFICIENT, pytest.param(Design.MAX, marks=pytest.mark.slow)])
def test_the_verilog_does_what_was_simulated(design, wrong_cycles, monkeypatch, tmp_path):
    ports, cycles = recorded(design, Phase.GP, monkeypatch)
    text = verilog(Accelerator(small_cores(design)))
    assert len(cycles) > 1000
    assert wrong_cycles(text, ports, cycles, tmp_path) == 0
    assert wrong_cycles(text.replace(" * ", " + "), ports, cycles, tmp_path) > 0
    cycles[0] |= {name: 0 for name, flow, _ in ports if flow is Flow.In}
    assert wrong_cycles(text, ports, cycles, tmp_path) > 0  # without its first descriptor it does something else
