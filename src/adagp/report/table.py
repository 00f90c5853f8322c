"""A table as plain text cells, and as a file: CSV for programs, Markdown for documents."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A title, column headings, rows of cells, and notes that explain the figures.

    The first `text_columns` columns hold text. The others hold numbers and are right-aligned.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    text_columns: int = 1

    def plain(self) -> dict[str, Any]:
        """The table as plain values, for JSON."""
        return {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows]}


def to_csv(table: Table) -> str:
    """The headings and rows as CSV, without the notes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """The title, table and notes as Markdown."""
    rule = ["---" if place < table.text_columns else "--:" for place in range(len(table.columns))]
    lines = [_row(table.columns), _row(rule), *(_row(row) for row in table.rows)]
    notes = "".join(f"- {note}\n" for note in table.notes)
    return f"**{table.title}**\n\n" + "\n".join(lines) + "\n" + (f"\n{notes}" if notes else "")


def _row(cells: tuple[str, ...] | list[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV, every digit kept; a field that a record lacks is empty."""
    text = io.StringIO()
    lines = csv.DictWriter(text, list(records[0]), restval="", lineterminator="\n")
    lines.writeheader()
    lines.writerows(records)
    return text.getvalue()
