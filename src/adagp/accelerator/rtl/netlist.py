"""A design in standard cells, module by module, as yosys and ABC map, size and buffer it."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from amaranth.lib.wiring import Component

from adagp.accelerator.rtl.liberty import LIBERTY, Cell, standard_cells
from adagp.accelerator.rtl.library import Library
from adagp.accelerator.rtl.tools import ToolError, run_yosys

Net = int | str
"""A wire of one bit: its number in yosys' netlist, or the constant `0`, `1` or `x`."""
_DRIVER, OUTPUT_LOAD_PF = "INVX2", 0.05
_MAP = """
hierarchy -check -top {top}; proc; flatten; opt; wreduce; peepopt; opt_clean; alumacc; share; opt
{memory}; opt -fast; techmap; opt -fast; dfflibmap -liberty {liberty}
write_file constraints <<END
set_driving_cell {driver}
set_load {load}
END
abc -liberty {liberty} -constr constraints; opt_clean; write_json netlist
"""
# Descriptors wait in queues of registers; everything larger is a bank, whose memory a chip takes from a compiler.
_QUEUES, _BANKS = "memory; opt -full", "memory -nomap"


@dataclass(frozen=True)
class Gate:
    """A standard cell in a netlist, or an instance of another module.

    Attributes:
        name: Its name in the module.
        kind: The cell, or the module.
        pins: The nets of each pin, one for each bit.
    """

    name: str
    kind: str
    pins: Mapping[str, tuple[Net, ...]]


@dataclass(frozen=True)
class Port:
    """A port of a module.

    Attributes:
        is_input: Its direction.
        nets: One for each bit.
    """

    is_input: bool
    nets: tuple[Net, ...]


@dataclass(frozen=True)
class Netlist:
    """One module in standard cells.

    Attributes:
        name: Its name.
        ports: By name.
        gates: Standard cells.
        instances: Other modules inside.
    """

    name: str
    ports: Mapping[str, Port]
    gates: tuple[Gate, ...]
    instances: tuple[Gate, ...]

    @cached_property
    def area_um2(self) -> float:
        """Area of its own cells."""
        return sum(self.cell(gate).area_um2 for gate in self.gates)

    @staticmethod
    def cell(gate: Gate) -> Cell:
        """The standard cell that a gate is."""
        return standard_cells()[gate.kind]

    @property
    def is_bank(self) -> bool:
        """Whether it is a memory with nothing around it."""
        return self.name.startswith("bank_")


def mapped(design: Component) -> dict[str, Netlist]:
    """The modules of a design in standard cells, the design itself the last.

    Raises:
        ToolError: If yosys or the standard cells are missing, or yosys fails.
    """
    standard_cells()
    modules = Library().modules(design)
    return {name: _mapped(name, text + black_boxes(text, modules)) for name, text in modules.items()}


def instance_counts(modules: Mapping[str, Netlist]) -> Counter[str]:
    """How often each module is in the design, the last of them."""
    found: Counter[str] = Counter()

    def count(name: str, times: int) -> None:
        found[name] += times
        for kind, number in Counter(each.kind for each in modules[name].instances).items():
            count(kind, times * number)

    count(list(modules)[-1], 1)
    return found


def instance_paths(modules: Mapping[str, Netlist]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The names that lead to every instance, and its module; the design itself has no names."""

    def below(path: tuple[str, ...], name: str) -> Iterator[tuple[tuple[str, ...], str]]:
        yield path, name
        for each in modules[name].instances:
            yield from below((*path, each.name), each.kind)

    yield from below((), list(modules)[-1])


def in_order(netlist: Netlist) -> list[tuple[Gate, str]]:
    """The outputs of the gates, each after those that it depends on; registers have none."""
    nodes = [
        (gate, pin)
        for gate in netlist.gates
        for pin, each in netlist.cell(gate).outputs.items()
        if each.function is not None
    ]
    drivers = {gate.pins[pin][0]: place for place, (gate, pin) in enumerate(nodes)}
    readers: dict[int, list[int]] = {}
    waiting = []
    for place, (gate, _) in enumerate(nodes):
        needs = {drivers[gate.pins[pin][0]] for pin in netlist.cell(gate).inputs if gate.pins[pin][0] in drivers}
        waiting.append(len(needs))
        for need in needs:
            readers.setdefault(need, []).append(place)
    ready, found = [place for place, count in enumerate(waiting) if not count], []
    while ready:
        found.append(nodes[place := ready.pop()])
        for reader in readers.get(place, []):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return found


def black_boxes(text: str, modules: Mapping[str, str]) -> str:
    """Declarations of every module that a module instantiates, with ports only."""
    boxes = []
    for name in sorted(set(re.findall(r"^ *cell \\(\S+)", text, re.MULTILINE)) & set(modules)):
        own = modules[name].partition(f"\nmodule \\{name}\n")[2].partition("\nend\n")[0]  # it may have parts
        ports = re.findall(r"^ *wire .*(?:input|output) \d+ .*$", own, re.MULTILINE)
        boxes.append("\n".join([f"attribute \\blackbox 1\nmodule \\{name}", *ports, "end\n"]))
    return "\n".join(boxes)


@cache
def _mapped(name: str, rtlil: str) -> Netlist:
    """Each module is mapped alone: in one run, the result for a PE would depend on its surroundings."""
    script = _MAP.format(
        top=name,
        liberty=LIBERTY,
        driver=_DRIVER,
        load=OUTPUT_LOAD_PF,
        memory=_BANKS if name.startswith("bank_") else _QUEUES,
    )
    found = json.loads(run_yosys(rtlil, script, "netlist"))["modules"]
    module, cells = found[name], standard_cells()
    parts = [
        Gate(key, each["type"], {pin: tuple(nets) for pin, nets in each["connections"].items()})
        for key, each in module["cells"].items()
        # Newer versions of yosys leave a $scopeinfo for each module that was flattened; it has no gates.
        if not each["type"].startswith(("$mem", "$scopeinfo"))
    ]
    unknown = sorted({part.kind for part in parts if part.kind not in cells and part.kind not in found})
    if unknown:
        raise ToolError(f"yosys left cells that the library does not have: {', '.join(unknown)}")
    ports = {key: _port(port) for key, port in module["ports"].items()}
    return Netlist(
        name,
        ports,
        tuple(part for part in parts if part.kind in cells),
        tuple(part for part in parts if part.kind not in cells),
    )


def _port(port: Mapping[str, Any]) -> Port:
    return Port(port["direction"] == "input", tuple(port["bits"]))
