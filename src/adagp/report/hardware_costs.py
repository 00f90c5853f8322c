"""Tables of the accelerator's clock, power, proofs and coverage."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from adagp.accelerator import Design
from adagp.report.hardware import short_name
from adagp.report.table import Table

if TYPE_CHECKING:
    from adagp.accelerator.rtl.placing import Placed
    from adagp.accelerator.rtl.power import BatchEnergy
    from adagp.accelerator.rtl.timing import ModuleTiming


def timing_table(title: str, found: "Mapping[str, ModuleTiming]", counts: Mapping[str, int]) -> Table:
    """The longest paths of every module."""

    def longest(values: Iterable[float]) -> str:
        return max((f"{value:.2f}" for value in sorted(values)[-1:]), default="")

    rows = [
        (
            short_name(name),
            str(counts[name]),
            f"{each.inside.ns:.2f}" if each.inside else "",
            longest(each.setup.values()),
            longest(each.arrives.values()),
            longest(each.through.values()),
        )
        for name, each in found.items()
        if not name.startswith("bank_")
    ]
    last = list(found.values())[-1].inside
    assert last is not None
    clock = f"the clock: {last.ns:.2f} ns, {1000 / last.ns:.0f} MHz; it is bound by {last.start} -> {last.end}"
    return Table(
        title,
        ("module", "number", "inside", "into it", "out of it", "through"),
        rows,
        (
            clock,
            "inside: from register to register, setup included; into it: from an input to a register",
            "out of it: from a register to an output; through: from an input to an output",
            "with estimated wires; no clock skew; memories answer at once, so their access time comes on top",
        ),
    )


def placed_table(title: str, found: "Mapping[Design, Placed]", versions: Mapping[str, str]) -> Table:
    """What each design takes of the FPGA, and the clock it reaches there."""
    rows = [
        (
            design.value,
            *(f"{number:,}" for number in each.used.values()),
            f"{each.mhz:.1f}",
            f"{each.logic_ns:.1f} + {each.routing_ns:.1f}",
        )
        for design, each in found.items()
    ]
    has = next(iter(found.values())).available
    memory = f"{has['bram']} RAMs of 18 Kbit"
    return Table(
        title,
        ("design", "LUT", "registers", "RAM", "mult", "MHz", "logic + routing, ns"),
        rows,
        (
            *(f"longest path of {design.value}: {each.start} -> {each.end}" for design, each in found.items()),
            f"the device has {has['lut']:,} LUTs and registers, {memory}, {has['multipliers']} multipliers",
            "LUTs of carry chains and small memories included; memories have an eighth of their words",
            f"by {' and '.join(f'{tool} {version}' for tool, version in versions.items())}",
        ),
    )


def power_table(title: str, found: "Mapping[Design, BatchEnergy]", clock_ns: float, mac_pj: float) -> Table:
    """The power of each design at a clock."""
    parts = ("internal", "switching", "leakage", "logic", "buffers")
    rows = []
    for design, each in found.items():
        power = each.milliwatts(clock_ns, mac_pj)
        shown = (f"{power[part]:,.3g}" if power[part] < 1 else f"{power[part]:,.0f}" for part in parts)
        rows.append((design.value, f"{each.cycles:,}", *shown))
    return Table(
        title,
        ("design", "cycles", *parts),
        rows,
        (
            f"estimates in mW at a clock of {clock_ns:g} ns; logic: internal (clock pins included), switching, leakage",
            f"buffers: words read and written, 6 multiply-accumulates each (Eyeriss), of {mac_pj:.0f} pJ on our PE",
            "no glitches, no clock tree, no clock gating; 0.18 um cells, so compare increases, not watts",
        ),
    )


def proofs_table(found: Mapping[str, tuple[bool, int]]) -> Table:
    """What was proved, and for how many cycles."""
    return Table(
        "Properties that hold for all inputs",
        ("property", "holds", "cycles"),
        [(name, "yes" if holds else "NO", str(cycles)) for name, (holds, cycles) in found.items()],
        ("by yosys' SAT solver, from reset, all inputs free in each of so many cycles",),
    )


def coverage_table(found: Mapping[str, int]) -> Table:
    """How often each kind of descriptor occurs."""
    hit = sum(count > 0 for count in found.values())
    return Table(
        f"Compiled descriptors: {hit} of {len(found)} kinds occur",
        ("kind", "descriptors"),
        [(name, f"{count:,}" if count else "NONE") for name, count in found.items()],
        ("of a BP and a GP batch on every design; counted, not clocked: `adagp hardware report` clocks them",),
    )
