"""A simulator of Verilog for machines that have none.

yosys reads the Verilog and takes it apart into a netlist of words: gates, multiplexers, registers and memories. Each
becomes a line of Python here. A bit is 0 or 1, and 0 where it is undefined.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from adagp.accelerator.rtl.tools import run_yosys

Bits = Sequence[int | str]
Cycle = Callable[[Mapping[str, int]], dict[str, int]]
_STEPS = "hierarchy -check -top {top}; proc; flatten; opt_expr; opt_clean; memory_collect; write_json netlist"
# Of the values a and b, which may be negative; a result is cut to its width.
_OPERATIONS = {
    "$add": "{a} + {b}", "$sub": "{a} - {b}", "$mul": "{a} * {b}",
    "$and": "{a} & {b}", "$or": "{a} | {b}", "$xor": "{a} ^ {b}", "$not": "~{a}", "$sshr": "{a} >> {b}",
    "$shr": "{a} >> {b}",
    "$eq": "{a} == {b}", "$ne": "{a} != {b}", "$lt": "{a} < {b}", "$le": "{a} <= {b}", "$gt": "{a} > {b}",
    "$ge": "{a} >= {b}", "$reduce_and": "{a} == {ones}",
    "$reduce_or": "{a} != 0", "$reduce_bool": "{a} != 0", "$logic_not": "{a} == 0",
    "$logic_and": "({a} != 0) & ({b} != 0)", "$logic_or": "({a} != 0) | ({b} != 0)",
}  # fmt: skip


def simulator(verilog: str, top: str) -> Cycle:
    """A function that takes the inputs of a cycle, gives its outputs, and then lets the clock tick."""
    script = f"read_verilog <<END\n{verilog}\nEND\n{_STEPS.format(top=top)}"
    return _Program(json.loads(run_yosys("", script, "netlist"))["modules"][top]).compiled()


@dataclass
class _Program:
    """Python for a netlist: variables `v` are combinational, `r` are registers, `m` are memories."""

    module: Mapping[str, Any]
    homes: dict[int | str, tuple[str, int]] = field(default_factory=dict)  # of each bit: its variable and place
    registers: list[int] = field(default_factory=list)
    memories: list[list[int]] = field(default_factory=list)
    words: list[tuple[str, Mapping[str, Any], int]] = field(default_factory=list)  # variable, cell, number of its port
    ticks: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def compiled(self) -> Cycle:
        ports = self.module["ports"]
        for name, port in ports.items():
            if port["direction"] == "input":
                self._settle(port["bits"], f"i[{name!r}]")
        for cell in self.module["cells"].values():
            self._add(cell)
        lines = [*self._combinational(), "o = {"]
        lines += [f"{n!r}: {self._word(p['bits'])}," for n, p in ports.items() if p["direction"] == "output"]
        lines += ["}", *self._clocked(), "return o"]
        names: dict[str, Any] = {"r": self.registers, "m": self.memories}
        exec("def cycle(i):\n " + "\n ".join(lines), names)
        return names["cycle"]  # type: ignore[no-any-return]

    def _settle(self, bits: Bits, variable: str) -> None:
        self.homes |= {bit: (variable, place) for place, bit in enumerate(bits)}

    def _add(self, cell: Mapping[str, Any]) -> None:
        kind, wires = cell["type"], cell["connections"]
        if kind == "$dff":
            assert wires["CLK"] == self.module["ports"]["clk"]["bits"]
            self._settle(wires["Q"], f"r[{len(self.registers)}]")
            self.ticks.append((f"r[{len(self.registers)}]", cell))
            self.registers.append(self._initial(wires["Q"]))
        elif kind == "$mem_v2":
            assert "1" not in cell["parameters"]["RD_CLK_ENABLE"]
            self.ticks.append((f"m[{len(self.memories)}]", cell))
            for port in range(_number(cell, "RD_PORTS")):
                self._settle(_part(wires["RD_DATA"], port, _number(cell, "WIDTH")), f"v{len(self.words)}")
                self.words.append((f"m[{len(self.memories)}]", cell, port))
            self.memories.append([0] * 2 ** _number(cell, "ABITS"))
        elif kind != "$scopeinfo":
            self._settle(wires["Y"], f"v{len(self.words)}")
            self.words.append(("", cell, 0))

    def _initial(self, bits: Bits) -> int:
        known = {
            bit: int(value == "1")
            for net in self.module["netnames"].values()
            if "init" in net["attributes"]
            for bit, value in zip(net["bits"], reversed(net["attributes"]["init"]), strict=True)
        }
        return sum(known.get(bit, 0) << place for place, bit in enumerate(bits))

    def _combinational(self) -> list[str]:
        """One line for each word, after those of the words it is made of."""
        graph, lines = {}, {}
        for number, (memory, cell, port) in enumerate(self.words):
            read = ("RD_ADDR",) if memory else ("A", "B", "S")
            wires = [bit for name in read for bit in cell["connections"].get(name, ())]
            graph[f"v{number}"] = {self.homes[bit][0] for bit in wires if bit in self.homes}
            address = _part(cell["connections"].get("RD_ADDR", ()), port, _number(cell, "ABITS")) if memory else ()
            value = f"{memory}[{self._word(address)}]" if memory else self._operation(cell)
            lines[f"v{number}"] = f"v{number} = {value}"
        return [lines[name] for name in TopologicalSorter(graph).static_order() if name in lines]

    def _operation(self, cell: Mapping[str, Any]) -> str:
        wires, width = cell["connections"], len(cell["connections"]["Y"])
        if cell["type"] in ("$mux", "$pmux"):
            value = self._word(wires["A"])
            for place, bit in enumerate(wires["S"]):
                value = f"({self._word(_part(wires['B'], place, width))} if {self._word([bit])} else {value})"
            return value
        operands = {name.lower(): self._operand(cell, name) for name in ("A", "B") if name in wires}
        ones = 2 ** len(wires["A"]) - 1
        return f"({_OPERATIONS[cell['type']].format(**operands, ones=ones)}) & {2**width - 1}"

    def _operand(self, cell: Mapping[str, Any], name: str) -> str:
        word, sign = self._word(cell["connections"][name]), 2 ** (len(cell["connections"][name]) - 1)
        return f"(({word} ^ {sign}) - {sign})" if _number(cell, f"{name}_SIGNED") else word

    def _clocked(self) -> list[str]:
        """Registers and memories take over what all of them had before the tick."""
        now, then = [], []
        for target, cell in self.ticks:
            wires = cell["connections"]
            if cell["type"] == "$dff":
                now.append(f"n{len(now)} = {self._word(wires['D'])}")
                then.append(f"{target} = n{len(now) - 1}")
                continue
            for port in range(_number(cell, "WR_PORTS")):
                sizes = {"WR_ADDR": _number(cell, "ABITS"), "WR_DATA": _number(cell, "WIDTH")}
                sizes["WR_EN"] = sizes["WR_DATA"]
                words = [self._word(_part(wires[name], port, size)) for name, size in sizes.items()]
                now.append(f"n{len(now)} = {', '.join(words)}")
                then.append(f"a, d, e = n{len(now) - 1}; {target}[a] = {target}[a] & ~e | d & e")
        return [*now, *then]

    def _word(self, bits: Bits) -> str:
        """An expression for these bits, the first the lowest: runs of the same variable are cut out together."""
        runs: list[list[Any]] = []  # variable, its first place, place here, length
        constant = 0
        for place, bit in enumerate(bits):
            if bit not in self.homes:
                assert bit in ("0", "1", "x"), bit
                constant |= int(bit == "1") << place
                continue
            variable, where = self.homes[bit]
            if runs and runs[-1][0] == variable and runs[-1][1] + runs[-1][3] == where and place == sum(runs[-1][2:]):
                runs[-1][3] += 1
            else:
                runs.append([variable, where, place, 1])
        parts = [f"({variable} >> {first} & {2**length - 1}) << {here}" for variable, first, here, length in runs]
        return f"({' | '.join([*parts, str(constant)])})"


def _number(cell: Mapping[str, Any], parameter: str) -> int:
    return int(cell["parameters"][parameter], 2)


def _part(bits: Bits, index: int, size: int) -> Bits:
    return bits[index * size : (index + 1) * size]
