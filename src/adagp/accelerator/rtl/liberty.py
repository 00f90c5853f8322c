"""Standard cells from a Liberty file: area, leakage, capacitance, logic function, delays and energies."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from adagp.accelerator.rtl.tools import ToolError

LIBERTY = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
"""Where Debian's package puts the standard cells: 0.18 um, 1.8 V, 25 degrees, typical process."""
VOLTS = 1.8
Bits = int
"""A net's value in many instances at once, one bit for each."""
Function = Callable[[Mapping[str, Bits], Bits], Bits]
RISE, FALL = 0, 1


@dataclass(frozen=True)
class LookUp:
    """A table over one or two variables, interpolated linearly and extended linearly beyond its ends."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]

    def at(self, first: float, second: float = 0.0) -> float:
        """The value at a point."""
        i, x = _between(self.first, first)
        if not self.second:
            low, high = self.rows[0][i], self.rows[0][min(i + 1, len(self.first) - 1)]
            return low + x * (high - low)
        j, y = _between(self.second, second)
        (a, b), (c, d) = (self.rows[i][j : j + 2], self.rows[i + 1][j : j + 2])
        return (1 - x) * ((1 - y) * a + y * b) + x * ((1 - y) * c + y * d)


@dataclass(frozen=True)
class Arc:
    """From an input of a cell to an output; tables take the load in pF and the input's transition in ns.

    Attributes:
        source: The input.
        inverts: Whether the output falls when the input rises; none if either may happen.
        clocked: Whether the input is a clock whose rise changes the output.
        delay: Delay in ns to a rising and to a falling output.
        transition: Transition of a rising and of a falling output, in ns.
    """

    source: str
    inverts: bool | None
    clocked: bool
    delay: tuple[LookUp, LookUp]
    transition: tuple[LookUp, LookUp]


@dataclass(frozen=True)
class Energy:
    """Internal energy in pJ of a rise and of a fall of a pin.

    Attributes:
        source: The input that causes it; empty for the pin's own transitions.
        tables: By load and transition of the input, or by the pin's transition alone.
    """

    source: str
    tables: tuple[LookUp, LookUp]


@dataclass(frozen=True)
class Pin:
    """One pin of a cell.

    Attributes:
        capacitance_pf: Load that it is to its driver.
        function: The value of an output; none for inputs, and for the state of a register.
        arcs: Delays to an output.
        energies: What its transitions take inside the cell.
        setup: Setup time in ns before a rising clock, for a rising and a falling input, by both transitions.
    """

    capacitance_pf: float
    function: Function | None
    arcs: tuple[Arc, ...]
    energies: tuple[Energy, ...]
    setup: tuple[LookUp, LookUp] | None


@dataclass(frozen=True)
class Cell:
    """A standard cell.

    Attributes:
        area_um2: Its area.
        leakage_nw: What it leaks.
        inputs: Pins by name.
        outputs: Pins by name.
        clock: The clock pin of a register, otherwise empty.
    """

    area_um2: float
    leakage_nw: float
    inputs: Mapping[str, Pin]
    outputs: Mapping[str, Pin]
    clock: str


def standard_cells() -> Mapping[str, Cell]:
    """The standard cells by name.

    Raises:
        ToolError: If they are not installed.
    """
    if not LIBERTY.is_file():
        raise ToolError(
            f"the standard cells are missing ({LIBERTY}): install them, on Debian: apt-get install qflow-tech-osu018"
        )
    return read_cells(LIBERTY)


@cache
def read_cells(path: Path) -> Mapping[str, Cell]:
    """The cells of a Liberty file by name."""
    text = re.sub(r"/\*.*?\*/|\\\n", " ", path.read_text(), flags=re.DOTALL)
    library = _Group("", "", iter(_TOKEN.findall(text))).all("library")[0]
    return {group.argument: _cell(group) for group in library.all("cell")}


_TOKEN = re.compile(r'"[^"]*"|[\w.+\-]+|[(){}:;,]')


class _Group:
    """`name (argument) { ... }`: attributes and groups inside."""

    def __init__(self, name: str, argument: str, tokens: Iterator[str]) -> None:
        self.name, self.argument = name, argument
        self.values: dict[str, str] = {}
        self.groups: list[_Group] = []
        for token in tokens:
            if token == "}":
                return
            if token == ";":
                continue
            mark = next(tokens)
            if mark == ":":
                self.values[token] = next(tokens).strip('"')
                continue
            found = []
            while (part := next(tokens)) != ")":
                found.append(part.strip('"'))
            value = "".join(found)
            if (end := next(tokens)) == "{":
                self.groups.append(_Group(token, value, tokens))
            elif end == ";":
                self.values[token] = ";".join(part for part in found if part != ",")

    def all(self, name: str) -> "list[_Group]":
        return [group for group in self.groups if group.name == name]


def _cell(group: _Group) -> Cell:
    pins = {pin.argument: pin for pin in group.all("pin")}
    registers = group.all("ff")
    state = {name for each in (*registers, *group.all("latch")) for name in each.argument.split(",")}
    outputs = {name: pin for name, pin in pins.items() if pin.values["direction"] == "output"}
    clocked = registers[0].values["clocked_on"] if registers else ""
    return Cell(
        float(group.values["area"]),
        float(group.values.get("cell_leakage_power", 0)),
        {name: _pin(pin, state) for name, pin in pins.items() if name not in outputs},
        {name: _pin(pin, state) for name, pin in outputs.items()},
        clocked,
    )


def _pin(group: _Group, state: set[str]) -> Pin:
    text = group.values.get("function", "")
    arcs, setup = [], None
    for timing in group.all("timing"):
        kind = timing.values.get("timing_type", "combinational")
        if kind in ("combinational", "rising_edge"):
            sense = timing.values.get("timing_sense")
            inverts = {"negative_unate": True, "positive_unate": False}.get(sense or "")
            arcs.append(
                Arc(
                    timing.values["related_pin"],
                    inverts,
                    kind == "rising_edge",
                    _pair(timing, "cell_{}"),
                    _pair(timing, "{}_transition"),
                )
            )
        elif kind == "setup_rising":
            setup = _pair(timing, "{}_constraint")
    energies = [
        Energy(power.values.get("related_pin", ""), _pair(power, "{}_power"))
        for power in group.all("internal_power")
        if len(power.groups) == 2  # an asynchronous clear only falls
    ]
    return Pin(
        float(group.values.get("capacitance", 0)),
        None if not text or text in state else _function(text),
        tuple(arcs),
        tuple(energies),
        setup,
    )


def _pair(group: _Group, name: str) -> tuple[LookUp, LookUp]:
    rise, fall = (group.all(name.format(edge))[0] for edge in ("rise", "fall"))
    return _table(rise), _table(fall)


def _table(group: _Group) -> LookUp:
    first, second = (_numbers(group.values.get(name, "")) for name in ("index_1", "index_2"))
    return LookUp(first, second, tuple(_numbers(row) for row in group.values["values"].split(";")))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part.strip())


def _between(index: Sequence[float], value: float) -> tuple[int, float]:
    """The place before a value, and how far it is from there to the next place."""
    i = min(max(bisect_right(index, value) - 1, 0), len(index) - 2)
    return i, (value - index[i]) / (index[i + 1] - index[i])


def _function(text: str) -> Function:
    """A Boolean expression as a function of its inputs' bits: `!`, `^`, `+`, and a blank or `*` for AND."""
    tokens = re.findall(r"\w+|[!^+()]", text)

    def term() -> Function:
        token = tokens.pop(0)
        if token == "!":
            inner = term()
            return lambda pins, ones: inner(pins, ones) ^ ones
        if token == "(":
            inside = expression()
            tokens.pop(0)
            return inside
        return lambda pins, ones: pins[token]

    def joined(parts: Callable[[], Function], more: Callable[[], bool], symbol: str) -> Function:
        left = parts()
        while tokens and more():
            if tokens[0] == symbol:
                tokens.pop(0)
            left = _COMBINED[symbol](left, parts())
        return left

    def product() -> Function:
        return joined(term, lambda: tokens[0] not in "^+)", "*")

    def difference() -> Function:
        return joined(product, lambda: tokens[0] == "^", "^")

    def expression() -> Function:
        return joined(difference, lambda: tokens[0] == "+", "+")

    return expression()


_COMBINED: Mapping[str, Callable[[Function, Function], Function]] = {
    "*": lambda a, b: lambda pins, ones: a(pins, ones) & b(pins, ones),
    "^": lambda a, b: lambda pins, ones: a(pins, ones) ^ b(pins, ones),
    "+": lambda a, b: lambda pins, ones: a(pins, ones) | b(pins, ones),
}
