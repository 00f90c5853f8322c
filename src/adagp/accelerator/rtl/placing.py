"""A design placed and routed on an FPGA whose tools are open: Lattice's largest ECP5, by yosys and nextpnr."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib.wiring import Component, Flow, In, Out

from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.tools import NEXTPNR, YOSYS, ToolError, run_yosys
from adagp.accelerator.rtl.top import Accelerator

DEVICE = "ECP5-85"
MEMORY_SHARE = 8
"""Memories have one word of so many: all of them do not fit into the FPGA's."""
_OPTIONS = ("--85k", "--package", "CABGA756", "--lpf-allow-unconstrained", "--timing-allow-fail", "--quiet")
_TARGET_MHZ = 50
_CELLS = {"TRELLIS_COMB": "lut", "TRELLIS_FF": "ff", "DP16KD": "bram", "MULT18X18D": "multipliers"}


@dataclass(frozen=True)
class Placed:
    """A placed and routed design.

    Attributes:
        used: Look-up tables, registers, block RAMs of 18 Kbit and multipliers.
        available: The same of the device.
        mhz: The fastest clock.
        logic_ns: The part of the longest path that is inside of cells.
        routing_ns: The part that is between them.
        start: The unit in which this path starts.
        end: The unit in which it ends.
    """

    used: dict[str, int]
    available: dict[str, int]
    mhz: float
    logic_ns: float
    routing_ns: float
    start: str
    end: str


def check_tools() -> None:
    """Check that there is all it takes, before anything is built.

    Raises:
        ToolError: If yosys or nextpnr is missing.
    """
    YOSYS.find()
    NEXTPNR.find()


def with_small_memories(cores: Mapping[str, CoreGeometry]) -> dict[str, CoreGeometry]:
    """The same cores with memories that fit into the FPGA."""
    names = ("input_depth", "weight_depth", "output_depth", "old_depth", "predictor_depth")
    return {
        unit: replace(core, **{name: getattr(core, name) // MEMORY_SHARE for name in names})
        for unit, core in cores.items()
    }


def place_and_route(design: Accelerator, seed: int = 1) -> Placed:
    """Place and route a design.

    The FPGA has fewer pins than the design has ports. So the inputs come from a shift register, and the outputs go to
    one pin as their parity, which keeps all of them needed. Both are in the figures.

    Args:
        design: The design.
        seed: Where the placer starts, on which the clock depends.

    Raises:
        ToolError: If yosys or nextpnr is missing or fails, or the design does not fit.
    """
    check_tools()
    top = _OnPins(design)
    rtlil = "\n".join(Library().modules(top).values())
    netlist = run_yosys(rtlil, f"synth_ecp5 -top {top.module_name} -json netlist.json", "netlist.json")
    with tempfile.TemporaryDirectory(prefix="adagp-") as name:
        folder = Path(name)
        (folder / "netlist.json").write_text(netlist)
        _refuse_if_too_large(json.loads(netlist)["modules"][top.module_name])
        files = ("--json", "netlist.json", "--report", "report.json")
        NEXTPNR.run(*_OPTIONS, "--freq", str(_TARGET_MHZ), "--seed", str(seed), *files, folder=folder)
        return _placed(json.loads((folder / "report.json").read_text()))


class _OnPins(Component):
    """A design between two pins."""

    def __init__(self, design: Accelerator) -> None:
        self.module_name = "on_pins"
        self._design = design
        super().__init__({"data": In(1), "parity": Out(1)})

    def elaborate(self, platform: Library | None) -> Module:
        """Shift the inputs in, and the parity of the outputs out."""
        del platform
        m = Module()
        m.submodules.accelerator = self._design
        ports: dict[Flow, list[Value]] = {Flow.In: [], Flow.Out: []}
        for _, member, signal in self._design.signature.flatten(self._design):
            ports[member.flow].append(Value.cast(signal))
        inputs, outputs = (Cat(*ports[flow]) for flow in (Flow.In, Flow.Out))
        chain, held = Signal(len(inputs)), Signal(len(outputs))
        m.d.comb += inputs.eq(chain)
        m.d.sync += [chain.eq(Cat(self.data, chain)), held.eq(outputs), self.parity.eq(held.xor())]
        return m


def _refuse_if_too_large(module: Mapping[str, Any]) -> None:
    kinds = [cell["type"] for cell in module["cells"].values()]
    for kind, most in {"MULT18X18D": 156, "DP16KD": 208}.items():
        if kinds.count(kind) > most:
            raise ToolError(f"the design does not fit: {kinds.count(kind)} {kind}, and {DEVICE} has {most}: fewer PEs")


def _placed(report: Mapping[str, Any]) -> Placed:
    found = report["utilization"]
    (clock,) = report["fmax"].values()
    path = next(each["path"] for each in report["critical_paths"] if each["from"] == each["to"])

    def delay(is_routing: bool) -> float:
        return float(sum(step["delay"] for step in path if (step["type"] == "routing") is is_routing))

    return Placed(
        {name: found[cell]["used"] for cell, name in _CELLS.items()},
        {name: found[cell]["available"] for cell, name in _CELLS.items()},
        clock["achieved"],
        delay(False),
        delay(True),
        _unit(path[0]["from"]["cell"]),
        _unit(path[-1]["to"]["cell"]),
    )


def _unit(cell: str) -> str:
    """Core and unit of a cell such as `accelerator.main.lane_2.sum_LUT4_Z`."""
    return ".".join(cell.split(".")[1:3])
