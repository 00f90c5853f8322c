"""Resources of a design by yosys: on Xilinx 7-series FPGAs, or in standard cells of an open 0.18 um library.

Memories become block RAMs on an FPGA. In standard cells they are left out, as a chip would take them from a memory
compiler. Nothing is placed or routed, and no power is estimated.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from amaranth.lib.wiring import Component

from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.tools import ToolError, find_yosys, run_yosys

TARGETS = ("xc7", "osu018")
LIBERTY = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
"""Where Debian's package puts the standard cells."""

_XC7 = "synth_xilinx -family xc7 -noiopad -noclkbuf -top {top}"
_OSU018 = """
hierarchy -check -top {top}; proc; flatten; opt; wreduce; peepopt; opt_clean; alumacc; share; opt
memory -nomap; opt -fast; techmap; opt -fast; dfflibmap -liberty {liberty}; abc -liberty {liberty}; opt_clean
"""


def check_target(target: str) -> None:
    """Check that designs can be synthesised for a target, before one is built.

    Raises:
        ValueError: If the target is unknown.
        ToolError: If yosys or the standard cells are missing.
    """
    if target not in TARGETS:
        raise ValueError(f"target={target!r}: is unknown; choose one of {', '.join(TARGETS)}")
    if target == "osu018" and not LIBERTY.is_file():
        raise ToolError(
            f"the standard cells are missing ({LIBERTY}): install them, on Debian: apt-get install qflow-tech-osu018"
        )
    find_yosys()


def synthesise(design: Component, target: str) -> dict[str, int]:
    """Resources of a design.

    Args:
        design: The top component.
        target: `xc7` gives `lut`, `ff`, `dsp`, `ramb36` and `ramb18`; `osu018` gives `cells`, `sequential_cells`,
            `area_um2` and `combinational_um2`.

    Raises:
        ValueError: If the target is unknown.
        ToolError: If yosys or the standard cells are missing, or yosys fails.
    """
    modules = Library().modules(design)
    check_target(target)
    own = {name: _cells(name, text + _black_boxes(text, modules), target) for name, text in modules.items()}
    cells = _total(design.module_name, own)
    return _on_fpga(cells) if target == "xc7" else _in_standard_cells(cells)


@cache
def _cells(name: str, rtlil: str, target: str) -> Counter[str]:
    """Cells of one module by type; instances of other modules count as cells.

    Each module is synthesised alone. In one run, the optimiser's result for a PE would depend on its surroundings, by
    more than designs differ.
    """
    script = (_XC7 if target == "xc7" else _OSU018).format(top=name, liberty=LIBERTY)
    text = run_yosys(rtlil, f"{script}\ntee -q -o stat stat -json", "stat")
    # Yosys 0.23 mixes a list of modules into its JSON.
    lines = [line for line in text.splitlines() if line.lstrip()[:1] in {*'{}"'}]
    report = json.loads("\n".join(lines))
    return Counter(report["modules"][f"\\{name}"]["num_cells_by_type"])


def _black_boxes(text: str, modules: Mapping[str, str]) -> str:
    """Declarations of every module that a module instantiates, with ports only."""
    boxes = []
    for name in sorted(set(re.findall(r"^ *cell \\(\S+)", text, re.MULTILINE)) & set(modules)):
        own = modules[name].partition(f"\nmodule \\{name}\n")[2].partition("\nend\n")[0]  # it may have parts
        ports = re.findall(r"^ *wire .*(?:input|output) \d+ .*$", own, re.MULTILINE)
        boxes.append("\n".join([f"attribute \\blackbox 1\nmodule \\{name}", *ports, "end\n"]))
    return "\n".join(boxes)


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


def _in_standard_cells(cells: Mapping[str, int]) -> dict[str, int]:
    areas = _areas(LIBERTY.read_text())
    # Newer versions of yosys leave a $scopeinfo for each module that was flattened; it has no gates.
    unknown = [cell for cell in cells if cell not in areas and not cell.startswith(("$mem", "$scopeinfo"))]
    if unknown:
        raise ToolError(f"yosys left cells that the library does not have: {', '.join(unknown)}")
    used = {cell: number for cell, number in cells.items() if cell in areas}
    sequential = {cell: number for cell, number in used.items() if cell.startswith(("DFF", "LATCH"))}
    area = round(sum(areas[cell] * number for cell, number in used.items()))
    return {
        "cells": sum(used.values()),
        "sequential_cells": sum(sequential.values()),
        "area_um2": area,
        "combinational_um2": area - round(sum(areas[cell] * number for cell, number in sequential.items())),
    }


def _areas(liberty: str) -> dict[str, float]:
    """Area of every cell in square micrometres."""
    found = re.findall(
        r"^\s*cell\s*\(\s*\"?(\w+)\"?\s*\)\s*\{.*?\barea\s*:\s*([\d.]+)", liberty, re.MULTILINE | re.DOTALL
    )
    return {cell: float(area) for cell, area in found}
