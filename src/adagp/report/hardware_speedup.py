"""The table of speed-ups that were clocked on the RTL."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adagp.report.table import Table

if TYPE_CHECKING:
    from adagp.accelerator.rtl.speedup import Clocked


def speedup_table(title: str, found: "Sequence[Clocked]") -> Table:
    """A line for each layer and design: cycles of the RTL, and its speed-up beside those of the models.

    The baseline has its plain BP batch alone, which the speed-ups below it are over.
    """
    from adagp.accelerator.rtl.speedup import WHOLE, speed_ups  # imports Amaranth, an extra

    rows: list[tuple[str, ...]] = []
    shown = None
    for each in speed_ups(found):
        plain, bp, gp = each.part
        part = f"{bp.layer}, {bp.batch}" if bp.layer != WHOLE else f"{bp.model}, {bp.batch}"
        if plain is not shown:
            rows.append((part, plain.design, f"{plain.cycles:,}", "", "", "", "", ""))
            shown = plain
        rows.append(
            (
                part,
                bp.design,
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
        ("layer, batch", "design", "BP", "GP", "RTL", "model", "no stalls", "off"),
        rows,
        (
            "cycles of the RTL; speed-up of one BP and one GP batch over two BP batches of the baseline",
            "model: the formulas, moves included, less RTL; no stalls: the accelerator model; off: that less RTL",
            f"of {len(found)} batches {exact} equal the integer model in each bit, {equal} the formulas in each cycle",
        ),
        text_columns=2,
    )
