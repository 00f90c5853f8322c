"""Tables 4 and 5 of the ADA-GP paper: resources on an FPGA and area in standard cells, our RTL beside the paper's."""

from collections.abc import Callable, Mapping
from typing import Any

from adagp.accelerator import Design
from adagp.report.table import Table

Resources = Mapping[Design, Mapping[str, int]]

TARGETS = {4: "xc7", 5: "osu018"}
"""The target of yosys for each table."""
TITLES = {4: "resources on a 7-series FPGA", 5: "area in um2 of standard cells"}
PAPER_TABLE_4: Resources = {
    Design.BASELINE: {"lut": 472_004, "ff": 31_402, "ramb36": 1_327, "ramb18": 514, "dsp": 166},
    Design.LOW: {"lut": 489_286, "ff": 31_856, "ramb36": 1_327, "ramb18": 514, "dsp": 166},
    Design.EFFICIENT: {"lut": 493_171, "ff": 31_916, "ramb36": 2_407, "ramb18": 514, "dsp": 166},
    Design.MAX: {"lut": 494_080, "ff": 37_452, "ramb36": 2_407, "ramb18": 514, "dsp": 246},
}
PAPER_TABLE_5: Resources = {
    design: dict(
        zip(("combinational_um2", "buffers_um2", "interconnect_um2", "area_um2", "total_um2"), areas, strict=True)
    )
    for design, areas in {
        Design.BASELINE: (2_331_250, 272_483, 436_615, 2_546_076, 2_982_691),
        Design.LOW: (2_375_188, 277_261, 445_371, 2_590_583, 3_035_954),
        Design.EFFICIENT: (2_405_881, 275_783, 440_031, 2_622_858, 3_062_890),
        Design.MAX: (2_512_057, 287_076, 460_157, 2_770_979, 3_231_136),
    }.items()
}
PAPER = {4: PAPER_TABLE_4, 5: PAPER_TABLE_5}
_NAMES = {
    "lut": "LUT",
    "ff": "registers",
    "dsp": "DSP48E1",
    "ramb36": "RAMB36",
    "ramb18": "RAMB18",
    "combinational_um2": "comb. only",
    "buffers_um2": "buf./inv.",
    "interconnect_um2": "wires",
    "area_um2": "all cells",
    "total_um2": "with wires",
}
_NOTES = {
    4: (
        "ours: yosys {yosys}, not placed or routed; the paper's: Vivado, placed and routed, on a Virtex 7",
        "LUT: the paper has 2,600 a PE, not said what for; a MAC is one DSP48E1, so compare increases, not shares",
        "RAMB36: the paper's 1,080 hold 2.2 million words of 16 bits; our predictor has 78,362 weights",
        "DSP48E1: MAX's second array has 80 PEs, read off the paper's +80; it does not say why 180 PEs take 166",
    ),
    5: (
        "ours: yosys {yosys}, open 0.18 um cells, no memories; the paper's: Design Compiler, technology not named",
        "wires: ours by Donath's formula and the cells' LEF file, not routed",
        "with wires: the paper's +1.7, +2.6 and +8.3 % are of this",
        "max: 80 PEs more than 180 are 44 % more of what most of the area is",
    ),
}


def synthesised(
    table: int, array: tuple[int, int], second_array: tuple[int, int], tell: Callable[[str], None]
) -> dict[Design, dict[str, int]]:
    """Our four designs, one after the other.

    Raises:
        ToolError: without yosys or its cells.
    """
    from adagp.accelerator.rtl.synthesis import check_target, synthesise
    from adagp.accelerator.rtl.top import Accelerator, geometries  # Amaranth may not be there

    designs = {design: geometries(design, array, second_array) for design in Design}
    check_target(TARGETS[table])
    found = {}
    for design, cores in designs.items():
        tell(f"synthesising {design.value} for {TARGETS[table]}")
        found[design] = synthesise(Accelerator(cores), TARGETS[table])
    return found


def resources_table(table: int, ours: Resources, title: str, yosys: str) -> Table:
    """Absolute values, and what each design adds to its baseline."""
    paper = PAPER[table]
    rows = [
        (
            design.value,
            _NAMES[resource],
            *_values(ours, design, resource),
            *_values(paper, design, resource),
        )
        for design in Design
        for resource in paper[design]
    ]
    columns = ("design", "resource", "ours", "increase", "%", "paper's", "increase", "%")
    notes = tuple(note.format(yosys=yosys) for note in _NOTES[table])
    return Table(f"Table {table}: {title}", columns, rows, notes, text_columns=2)


def plain(table: int, ours: Resources, yosys: str) -> dict[str, Any]:
    """The resources as plain values, for JSON."""
    return {"yosys": yosys} | {
        whose: {design.value: dict(resources[design]) for design in Design}
        for whose, resources in (("ours", ours), ("paper", PAPER[table]))
    }


def _values(found: Resources, design: Design, resource: str) -> tuple[str, str, str]:
    """The value, what it adds to the baseline's, and that in percent."""
    if resource not in found[design]:
        return "", "", ""
    value, base = found[design][resource], found[Design.BASELINE][resource]
    if design is Design.BASELINE:
        return f"{value:,}", "", ""
    return f"{value:,}", f"{value - base:+,}", f"{100 * (value / base - 1):+.1f}" if base else "-"
