"""One batch of each kind on every design: BP, GP and coarse side by side, in cycles and energy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adagp.accelerator import BatchKind, CostTable, Design
from adagp.report.accelerator import short
from adagp.report.table import Table

Kinds = Mapping[Design, Sequence[BatchKind]]


def kinds_table(kinds: Kinds, table: CostTable, notes: tuple[str, ...] = ()) -> Table:
    """Cycles and energy of one batch of each kind, and their shares of the baseline's BP batch."""
    plain = kinds[Design.BASELINE][0]
    order = [batch.label for batch in kinds[Design.MAX]]  # the baseline has no GP batch
    rows = []
    for design, batches in kinds.items():
        known = {batch.label: batch for batch in batches}
        cycles = [_cells(known.get(label), lambda batch: batch.cycles, plain.cycles) for label in order]
        energy = [_cells(known.get(label), lambda batch: batch.energy(table), plain.energy(table)) for label in order]
        rows.append((design.value, *(cell for pair in (*cycles, *energy) for cell in pair)))
    columns = [cell for what in ("cycles", "energy") for label in order for cell in (f"{label} {what}", "%")]
    return Table(
        "One batch of each kind",
        ("design", *columns),
        rows,
        ("%: of the baseline's BP batch; the predictor learns in full BP batches and rests in coarse ones", *notes),
    )


def _cells(batch: BatchKind | None, figure: Callable[[BatchKind], float], plain: float) -> tuple[str, str]:
    return ("-", "-") if batch is None else (short(figure(batch)), f"{100 * figure(batch) / plain:.1f}")


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
