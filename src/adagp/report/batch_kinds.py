"""One batch of each kind on every design: BP, GP and coarse side by side, in cycles and energy."""

from collections.abc import Mapping, Sequence
from typing import Any

from adagp.accelerator import BatchKind, CostTable, Design
from adagp.report.accelerator import short
from adagp.report.table import Table

Kinds = Mapping[Design, Sequence[BatchKind]]


def kinds_table(kinds: Kinds, table: CostTable, notes: tuple[str, ...] = ()) -> Table:
    """Cycles and energy of one batch of each kind, and their shares of the baseline's BP batch."""
    plain = kinds[Design.BASELINE][0]
    rows = [
        (
            design.value,
            batch.label,
            *_cells(batch.cycles, plain.cycles),
            *_cells(batch.energy(table), plain.energy(table)),
        )
        for design, batches in kinds.items()
        for batch in batches
    ]
    return Table(
        "One batch of each kind",
        ("design", "batch", "cycles", "%", "energy", "%"),
        rows,
        ("%: of the baseline's BP batch; the predictor learns in full BP batches and rests in coarse ones", *notes),
        text_columns=2,
    )


def _cells(figure: float, plain: float) -> tuple[str, str]:
    return short(figure), f"{100 * figure / plain:.1f}"


def kinds_facts(kinds: Kinds, table: CostTable) -> dict[str, list[dict[str, Any]]]:
    """The same figures for programs, by design."""
    return {
        design.value: [
            {
                "batch": batch.label,
                "phase": batch.phase.value,
                "scale": batch.scale,
                "cycles": batch.cycles,
                "dram_words": batch.dram_words,
                "buffer_words": batch.buffer_words,
                "energy": batch.energy(table),
            }
            for batch in batches
        ]
        for design, batches in kinds.items()
    }


def schedule_words(method: str, scale: float, levels: Sequence[tuple[float, float]]) -> str:
    """What the epochs of a training consist of, for its assumptions."""
    if method == "coarse":
        return f"the paper's ladder with BP@{scale:g} instead of GP"
    if method == "progressive":
        return "progressive resizing, " + ", ".join(f"{100 * share:g} % at {level:g}" for level, share in levels)
    return "the paper's ladder"
