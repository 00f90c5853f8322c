"""A table as plain text cells, for the terminal and the HTML page alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A title, column headings, rows of cells, and notes that say what the figures are.

    All columns but the first `text_columns` hold numbers and are set flush right.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    text_columns: int = 1

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows]}
