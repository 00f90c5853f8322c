"""Numbers of the ADA-GP paper (001) about its hardware: tables 4 and 5, and what section 6.6 says about them."""

from collections.abc import Iterator

from adagp.accelerator import Design
from adagp.reproduce.hardware import PAPER_TABLE_4, PAPER_TABLE_5
from adagp.reproduce.numbers.row import Row, Verdict, judged

# As synthesised by yosys 0.70 (table 4) and yosys 0.23 (table 5): docs/hardware.md.
OURS_4 = {
    Design.BASELINE: (9_430, 9_210, 276, 0, 180),
    Design.LOW: (12_501, 11_262, 276, 0, 180),
    Design.EFFICIENT: (13_717, 11_298, 336, 0, 180),
    Design.MAX: (20_709, 16_942, 388, 10, 260),
}
OURS_5 = {
    Design.BASELINE: 19_214_276,
    Design.LOW: 19_726_569,
    Design.EFFICIENT: 19_774_164,
    Design.MAX: 29_135_551,
}
# Table 4b: clocks, logic, signals, block RAM, DSPs, static, total, in W.
POWER_4 = {
    Design.BASELINE: (0.046, 0.42, 0.842, 0.244, 0.009, 2.032, 3.712),
    Design.LOW: (0.047, 0.446, 0.857, 0.243, 0.001, 2.032, 3.745),
    Design.EFFICIENT: (0.052, 0.421, 0.852, 0.339, 0.001, 2.06, 3.844),
    Design.MAX: (0.055, 0.426, 0.857, 0.339, 0.001, 2.059, 3.856),
}
# Table 5b: internal, switching, leakage, total, in µW.
POWER_5 = {
    Design.BASELINE: (2.26e4, 1.72e3, 1.99e5, 2.24e5),
    Design.LOW: (2.25e4, 1.67e3, 2.02e5, 2.26e5),
    Design.EFFICIENT: (2.27e4, 1.80e3, 2.00e5, 2.25e5),
    Design.MAX: (2.80e4, 2.42e3, 2.23e5, 2.54e5),
}
_RESOURCES = ("lut", "ff", "ramb36", "ramb18", "dsp")
_MAX_AREA = {Design.MAX: "; 80 more PEs are 44 % of 180, and most of the area is PEs"}
_ARITHMETIC = "arithmetic on its table: `adagp reproduce numbers`"


def rows() -> Iterator[Row]:
    """Each design in each table, and the percentages of the text."""
    for design, theirs in PAPER_TABLE_4.items():
        yield Row(
            "table 4a",
            f"{design.value}: LUT, registers, RAMB36, RAMB18, DSP48E1",
            ", ".join(f"{theirs[name]:,}" for name in _RESOURCES),
            Verdict.OPEN,
            ", ".join(f"{value:,}" for value in OURS_4[design]),
            "`adagp reproduce table4`; its RTL is not public, and its 2,600 LUTs a PE are [not explained](hardware.md)",
        )
    added = PAPER_TABLE_4[Design.MAX]["dsp"] - PAPER_TABLE_4[Design.BASELINE]["dsp"]
    ours = OURS_4[Design.MAX][4] - OURS_4[Design.BASELINE][4]
    yield Row(
        "table 4a", "DSP48E1 that MAX adds", f"+{added}", judged(ours == added), f"+{ours}", "`adagp reproduce table4`"
    )
    for design, watts in POWER_4.items():
        yield Row(
            "table 4b",
            f"{design.value}: on-chip power, W",
            f"{watts[-1]}",
            Verdict.OPEN,
            f"its parts add up to {sum(watts[:-1]):.3f}",
            "needs Vivado's power model; 0.119 W are missing from the parts of every design",
        )
    stated = {Design.LOW: 0.8, Design.EFFICIENT: 3.5, Design.MAX: 3.8}
    gains = {design: 100 * (POWER_4[design][-1] / POWER_4[Design.BASELINE][-1] - 1) for design in stated}
    yield Row(
        "section 6.6.1",
        "power that LOW, Efficient and MAX add on the FPGA",
        ", ".join(f"{value} %" for value in stated.values()),
        judged(all(0 <= gains[design] - value < 0.1 for design, value in stated.items())),
        ", ".join(f"{value:.2f} %" for value in gains.values()) + ", cut off after one digit",
        _ARITHMETIC,
    )
    yield from _area()
    for design, parts in POWER_5.items():
        yield Row(
            "table 5b",
            f"{design.value}: power, µW",
            f"{parts[-1]:.3g}",
            Verdict.OPEN,
            f"its parts add up to {sum(parts[:-1]):.4g}",
            "needs Synopsys' tools and its cells; caption and table disagree whether these are W or µW",
        )


def _area() -> Iterator[Row]:
    for design, theirs in PAPER_TABLE_5.items():
        grown, cells = (
            100 * (table[design] / table[Design.BASELINE] - 1)
            for table in (OURS_5, {each: row["area_um2"] for each, row in PAPER_TABLE_5.items()})
        )
        plain = design is Design.BASELINE
        yield Row(
            "table 5a",
            f"{design.value}: cell area, um2" + ("" if plain else ", and its increase"),
            f"{theirs['area_um2']:,}" + ("" if plain else f" (+{cells:.1f} %)"),
            Verdict.OPEN if plain else judged(abs(grown - cells) < 1.5),
            f"{OURS_5[design]:,}" + ("" if plain else f" (+{grown:.1f} %)"),
            "`adagp reproduce table5`"
            + (
                "; it names no technology" if plain else "; increases compare, areas do not" + _MAX_AREA.get(design, "")
            ),
        )
    base = PAPER_TABLE_5[Design.BASELINE]["total_um2"]
    stated = {Design.LOW: 1.7, Design.EFFICIENT: 2.6, Design.MAX: 8.3}
    gains = {design: 100 * (PAPER_TABLE_5[design]["total_um2"] / base - 1) for design in stated}
    yield Row(
        "section 6.6.1",
        "area that LOW, Efficient and MAX add",
        ", ".join(f"{value} %" for value in stated.values()),
        judged(all(0 <= gains[design] - value < 0.1 for design, value in stated.items())),
        ", ".join(f"{value:.2f} %" for value in gains.values()) + ", cut off after one digit",
        _ARITHMETIC,
    )
