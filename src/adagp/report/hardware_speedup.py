"""The table of speed-ups that were clocked on the RTL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adagp.report.table import Table

if TYPE_CHECKING:
    from adagp.accelerator.rtl.speedup import Clocked


def speedup_table(title: str, found: "Sequence[Clocked]") -> Table:
    """A line for each layer and design: cycles of the RTL, and its speed-up beside those of the models."""
    from adagp.accelerator.rtl.speedup import WHOLE, speed_ups  # imports Amaranth, an extra

    rows = []
    for each in speed_ups(found):
        plain, bp, gp = each.part
        rows.append(
            (
                f"{bp.layer}, {bp.batch}" if bp.layer != WHOLE else f"{bp.model}, {bp.batch}",
                bp.design,
                f"{plain.cycles:,}",
                f"{bp.cycles:,}",
                f"{gp.cycles:,}",
                f"{each.rtl:.3f}",
                f"{each.model - each.rtl:+.3f}",
                f"{each.no_stalls:.3f}",
                f"{each.no_stalls - each.rtl:+.3f}",
            )
        )
    exact = sum(batch.bit_exact for batch in found)
    equal = sum(batch.cycles == batch.model_cycles for batch in found)
    return Table(
        f"Speed-up on the RTL, 180 PEs, {title}",
        ("layer, batch", "design", "plain BP", "BP", "GP", "RTL", "model", "no stalls", "off"),
        rows,
        (
            "cycles of the RTL; speed-up of one BP and one GP batch over two of plain BP on the baseline",
            "model: the formulas, moves included, less RTL; no stalls: the accelerator model; off: that less RTL",
            f"of {len(found)} batches {exact} equal the integer model in each bit, {equal} the formulas in each cycle",
        ),
        text_columns=2,
    )
