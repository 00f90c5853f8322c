"""Resources of a design by yosys: on Xilinx 7-series FPGAs, or in standard cells of an open 0.18 um library.

Memories become block RAMs on an FPGA. In standard cells they are left out, as a chip would take them from a memory
compiler; the queues of descriptors are registers. Nothing is placed or routed: the area of wires is an estimate.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache

from amaranth.lib.wiring import Component

from adagp.accelerator.rtl.liberty import standard_cells
from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.netlist import Netlist, black_boxes, instance_counts, mapped
from adagp.accelerator.rtl.tools import YOSYS, run_yosys
from adagp.accelerator.rtl.wires import module_wires

TARGETS = ("xc7", "osu018")
_XC7 = "synth_xilinx -family xc7 -noiopad -noclkbuf -top {top}"


def check_target(target: str) -> None:
    """Check that designs can be synthesised for a target, before one is built.

    Raises:
        ValueError: If the target is unknown.
        ToolError: If yosys or the standard cells are missing.
    """
    if target not in TARGETS:
        raise ValueError(f"target={target!r}: is unknown; choose one of {', '.join(TARGETS)}")
    if target == "osu018":
        standard_cells()
    YOSYS.find()


def synthesise(design: Component, target: str) -> dict[str, int]:
    """Resources of a design.

    Args:
        design: The top component.
        target: `xc7` gives `lut`, `ff`, `dsp`, `ramb36` and `ramb18`; `osu018` gives numbers of cells and areas.

    Raises:
        ValueError: If the target is unknown.
        ToolError: If yosys or the standard cells are missing, or yosys fails.
    """
    check_target(target)
    if target == "osu018":
        return areas(mapped(design))
    return _on_fpga(_total(design.module_name, _own_cells(design)))


def module_resources(design: Component, target: str) -> dict[str, dict[str, int]]:
    """Where the resources of a design are: `number` of each kind of module, and what one takes without those inside it.

    Raises:
        ValueError: If the target is unknown.
        ToolError: If yosys or the standard cells are missing, or yosys fails.
    """
    check_target(target)
    if target == "osu018":
        modules = mapped(design)
        counts, wires = instance_counts(modules), module_wires(modules)
        return {
            name: {
                "number": counts[name],
                "cells": len(netlist.gates),
                "area_um2": round(netlist.area_um2),
                "interconnect_um2": round(wires[name].area_um2),
            }
            for name, netlist in modules.items()
        }
    own = _own_cells(design)
    return {
        name: {
            "number": _instances(name, own, design.module_name),
            **_on_fpga({cell: number for cell, number in cells.items() if cell not in own}),
        }
        for name, cells in own.items()
    }


def areas(modules: Mapping[str, Netlist]) -> dict[str, int]:
    """Numbers of cells and areas of a design in standard cells; combinational cells include buffers and inverters."""
    counts, wires = instance_counts(modules), module_wires(modules)
    kinds: Counter[str] = Counter()
    for name, netlist in modules.items():
        for gate in netlist.gates:
            kinds[gate.kind] += counts[name]
    cells = standard_cells()

    def area(prefixes: tuple[str, ...]) -> int:
        return round(sum(number * cells[kind].area_um2 for kind, number in kinds.items() if kind.startswith(prefixes)))

    whole, registers = area(("",)), area(("DFF",))
    interconnect = round(sum(counts[name] * each.area_um2 for name, each in wires.items()))
    return {
        "cells": sum(kinds.values()),
        "sequential_cells": sum(number for kind, number in kinds.items() if kind.startswith("DFF")),
        "combinational_um2": whole - registers,
        "buffers_um2": area(("BUF", "INV")),
        "interconnect_um2": interconnect,
        "area_um2": whole,
        "total_um2": whole + interconnect,
    }


@cache
def _cells(name: str, rtlil: str) -> Counter[str]:
    """Cells of one module by type; instances of other modules count as cells.

    Each module is synthesised alone. In one run, the optimiser's result for a PE would depend on its surroundings, by
    more than designs differ.
    """
    text = run_yosys(rtlil, f"{_XC7.format(top=name)}\ntee -q -o stat stat -json", "stat")
    # Yosys 0.23 mixes a list of modules into its JSON.
    lines = [line for line in text.splitlines() if line.lstrip()[:1] in {*'{}"'}]
    report = json.loads("\n".join(lines))
    return Counter(report["modules"][f"\\{name}"]["num_cells_by_type"])


def _own_cells(design: Component) -> dict[str, Counter[str]]:
    """Cells and instances of every module on the FPGA, the design itself the last."""
    modules = Library().modules(design)
    return {name: _cells(name, text + black_boxes(text, modules)) for name, text in modules.items()}


def _instances(name: str, own: Mapping[str, Counter[str]], top: str) -> int:
    """How often a module is in `top`."""
    if name == top:
        return 1
    return sum(number * _instances(name, own, cell) for cell, number in own[top].items() if cell in own)


def _total(name: str, own: Mapping[str, Counter[str]]) -> Counter[str]:
    """Cells of a module and of all modules inside it."""
    total: Counter[str] = Counter()
    for cell, number in own[name].items():
        inside = _total(cell, own) if cell in own else {cell: 1}
        total.update({kind: number * count for kind, count in inside.items()})
    return total


def _on_fpga(cells: Mapping[str, int]) -> dict[str, int]:
    """Each LUT, inverter, shift register and bit of distributed memory takes one look-up table of a slice."""

    def count(pattern: str) -> int:
        return sum(number for cell, number in cells.items() if re.fullmatch(pattern, cell))

    return {
        "lut": count(r"LUT\d|INV|SRL\w+|RAM\d+\w*"),
        "ff": count(r"FD\w+"),
        "dsp": count(r"DSP48E1"),
        "ramb36": count(r"RAMB36E1"),
        "ramb18": count(r"RAMB18E1"),
    }
