"""Reads the waveforms that Amaranth's simulator wrote (VCD): what units and channels did in every cycle."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from adagp.accelerator.rtl.top import MAIN, PREDICTOR

UNITS = {"loader": "loader", "array": "controller", "drainer": "drainer"}
"""The units of a core, and the modules whose state they have."""
CHANNELS = ("descriptors", "requests", "answers", "writes")
MOVES, WAITS, IDLE = "moves", "waits", ""
"""A channel moves a beat, or has one that the other side does not take yet."""
_TOP = "bench.top"


@dataclass(frozen=True)
class Span:
    """Cycles in a row in which a unit or channel did the same.

    Attributes:
        state: What it did.
        start: The first cycle.
        end: The first cycle after them.
    """

    state: str
    start: int
    end: int


@dataclass(frozen=True)
class CoreWaves:
    """What one core did.

    Attributes:
        cycles: Cycles of the whole simulation.
        rows: Spans of each unit and channel, without those in which it was idle.
    """

    cycles: int
    rows: Mapping[str, tuple[Span, ...]]

    def counts(self, row: str) -> Counter[str]:
        """Cycles that a unit or channel spent in each state."""
        found: Counter[str] = Counter()
        for span in self.rows[row]:
            found[span.state] += span.end - span.start
        return found


def read_waves(path: Path) -> dict[str, CoreWaves]:
    """The waveforms of each core.

    Raises:
        ValueError: If the file has none of ours.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        codes = _declared(lines)
        cores = [unit for unit in (MAIN, PREDICTOR) if f"{_TOP}.{unit}.loader.fsm_state" in codes]
        if not cores:
            raise ValueError(
                f"vcd={path}: has no waveforms of an accelerator; write some by `adagp hardware run --vcd FILE`"
            )
        states: dict[tuple[str, str], list[str]] = defaultdict(list)
        for values in _cycles(lines, codes):
            for unit in cores:
                for row, module in UNITS.items():
                    state = values[f"{_TOP}.{unit}.{module}.fsm_state"].partition("/")[0]
                    states[unit, row].append(IDLE if state == "IDLE" else state)
                for row in CHANNELS:
                    valid, ready = (values[f"{_TOP}.{unit}__{row}__{what}"] for what in ("valid", "ready"))
                    states[unit, row].append(IDLE if valid != "1" else MOVES if ready == "1" else WAITS)
    return {
        unit: CoreWaves(
            len(states[unit, CHANNELS[0]]), {row: tuple(_spans(states[unit, row])) for row in (*UNITS, *CHANNELS)}
        )
        for unit in cores
    }


def _declared(lines: Iterable[str]) -> dict[str, str]:
    """The code of every signal that is read, by its whole name."""
    wanted = (".fsm_state", "__valid", "__ready", ".clk")
    scope: list[str] = []
    codes = {}
    for line in lines:
        match line.split():
            case ["$scope", _, name, "$end"]:
                scope.append(name)
            case ["$upscope", "$end"]:
                scope.pop()
            case ["$var", _, _, code, name, *_]:
                whole = ".".join([*scope, name])
                if whole.endswith(wanted):
                    codes[whole] = code
            case ["$enddefinitions", "$end"]:
                break
    return codes


def _cycles(lines: Iterable[str], codes: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The values of the signals in every cycle, which are those before the clock rises."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, code in codes.items():
        names[code].append(name)
    clock = f"{_TOP}.clk"
    values, changed = dict.fromkeys(codes, "0"), dict[str, str]()
    for line in lines:
        if line.startswith("#"):
            if changed.get(clock) == "1" and values[clock] == "0":
                yield values
            values |= changed
            changed = {}
            continue
        value, code = (
            (line[1:].split() if line[0] in "bs" else (line[0], line[1:].strip())) if line.strip() else ("", "")
        )
        for name in names.get(code, ()):
            changed[name] = value


def _spans(states: Iterable[str]) -> Iterator[Span]:
    """Cycles in a row with the same state, without idle ones."""
    start = 0
    for state, group in groupby(states):
        end = start + sum(1 for _ in group)
        if state != IDLE:
            yield Span(state, start, end)
        start = end
