"""Tables 4b and 5b of the ADA-GP paper: what the designs add to the baseline's power, ours beside the paper's."""

from collections.abc import Mapping
from typing import Any

from adagp.accelerator import Design
from adagp.report.table import Table

Power = Mapping[Design, Mapping[str, float]]

PAPER_TABLE_4B: Power = {
    design: dict(zip(("clocks", "logic", "signals", "block_ram", "dsp", "static", "total"), watts, strict=True))
    for design, watts in {
        Design.BASELINE: (0.046, 0.42, 0.842, 0.244, 0.009, 2.032, 3.712),
        Design.LOW: (0.047, 0.446, 0.857, 0.243, 0.001, 2.032, 3.745),
        Design.EFFICIENT: (0.052, 0.421, 0.852, 0.339, 0.001, 2.06, 3.844),
        Design.MAX: (0.055, 0.426, 0.857, 0.339, 0.001, 2.059, 3.856),
    }.items()
}
"""On the FPGA, in W."""
PAPER_TABLE_5B: Power = {
    design: dict(zip(("internal", "switching", "leakage", "total"), microwatts, strict=True))
    for design, microwatts in {
        Design.BASELINE: (2.26e4, 1.72e3, 1.99e5, 2.24e5),
        Design.LOW: (2.25e4, 1.67e3, 2.02e5, 2.26e5),
        Design.EFFICIENT: (2.27e4, 1.80e3, 2.00e5, 2.25e5),
        Design.MAX: (2.80e4, 2.42e3, 2.23e5, 2.54e5),
    }.items()
}
"""In standard cells, in microwatts by its heading and in W by its caption."""
_ROWS = (
    ("internal", "internal", None),
    ("switching", "switching", "signals"),
    ("leakage", "leakage", "static"),
    ("logic", "total", None),
    ("buffers", None, "block_ram"),
    ("logic and buffers", None, "total"),
)
"""Our part, and what is nearest to it in tables 5b and 4b."""


def missing_watts(watts: Mapping[str, float]) -> float:
    """What a total of table 4b exceeds its parts by."""
    return watts["total"] - sum(value for part, value in watts.items() if part != "total")


def power_table(ours: Power, phase: str) -> Table:
    """What each design adds to the baseline, part by part, in percent.

    Args:
        ours: Parts of each design's power, the baseline's among them.
        phase: The batch that the other designs ran; the baseline runs BP.
    """
    rows = [
        (
            design.value,
            part,
            _increase(ours, design, part),
            _increase(PAPER_TABLE_5B, design, cells),
            _increase(PAPER_TABLE_4B, design, fpga),
        )
        for design in ours
        if design is not Design.BASELINE
        for part, cells, fpga in _ROWS
    ]
    missing = {round(missing_watts(watts), 3) for watts in PAPER_TABLE_4B.values()}
    other = "BP, which includes learning" if phase == "bp" else f"{phase.upper()}, and the baseline's BP"
    notes = (
        f"ours: the batch is {other}; buffers by another estimate than logic",
        "table 4b: signals, static power, block RAM and total stand beside our parts; its others have none here",
        f"table 4b: the parts add up to {', '.join(map(str, sorted(missing)))} W less than the total, in every design",
        "table 5b: W in its caption, microwatts in its heading; leakage is nine tenths of it, so the cells are small",
    )
    title = "Increase over the baseline's power, %"
    return Table(title, ("design", "part", "ours", "table 5b", "table 4b"), rows, notes, text_columns=2)


def plain(ours: Power) -> dict[str, Any]:
    """The same three tables as plain values, for JSON."""
    tables = {"ours_mw": ours, "table_4b_w": PAPER_TABLE_4B, "table_5b": PAPER_TABLE_5B}
    return {name: {design.value: dict(parts) for design, parts in table.items()} for name, table in tables.items()}


def _increase(table: Power, design: Design, part: str | None) -> str:
    """What a design adds to the baseline's part, in percent."""
    if part is None:
        return ""
    return f"{100 * (table[design][part] / table[Design.BASELINE][part] - 1):+.1f}"
