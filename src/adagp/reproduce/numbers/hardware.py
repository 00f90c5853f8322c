"""Numbers of the ADA-GP paper (001) about its hardware: tables 4 and 5, and what section 6.6 says about them."""

from collections.abc import Iterator, Mapping

from adagp.accelerator import Design
from adagp.reproduce.hardware import PAPER_TABLE_4, PAPER_TABLE_5
from adagp.reproduce.numbers.row import Row, Verdict, judged
from adagp.reproduce.power import PAPER_TABLE_4B, PAPER_TABLE_5B, missing_watts

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
_RESOURCES = ("lut", "ff", "ramb36", "ramb18", "dsp")
_MAX_AREA = {Design.MAX: "; 80 more PEs are 44 % of 180, and most of the area is PEs"}


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
    for design, watts in PAPER_TABLE_4B.items():
        yield Row(
            "table 4b",
            f"{design.value}: on-chip power, W",
            f"{watts['total']}",
            Verdict.OPEN,
            f"its parts add up to {watts['total'] - missing_watts(watts):.3f}",
            "needs Vivado's power model; 0.119 W are missing from the parts of every design",
        )
    yield _added("power that LOW, Efficient and MAX add on the FPGA", (0.8, 3.5, 3.8), PAPER_TABLE_4B, "total")
    yield from _area()
    for design, parts in PAPER_TABLE_5B.items():
        yield Row(
            "table 5b",
            f"{design.value}: power, µW",
            f"{parts['total']:.3g}",
            Verdict.OPEN,
            f"its parts add up to {sum(value for part, value in parts.items() if part != 'total'):.4g}",
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
    yield _added("area that LOW, Efficient and MAX add", (1.7, 2.6, 8.3), PAPER_TABLE_5, "total_um2")


def _added(what: str, stated: tuple[float, ...], table: Mapping[Design, Mapping[str, float]], total: str) -> Row:
    """Percentages of the text, which are those of a table cut off after one digit."""
    gains = [100 * (table[design][total] / table[Design.BASELINE][total] - 1) for design in Design][1:]
    return Row(
        "section 6.6.1",
        what,
        ", ".join(f"{value} %" for value in stated),
        judged(all(0 <= gain - value < 0.1 for gain, value in zip(gains, stated, strict=True))),
        ", ".join(f"{gain:.2f} %" for gain in gains) + ", cut off after one digit",
        "arithmetic on its table: `adagp reproduce numbers`",
    )
