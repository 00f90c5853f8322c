"""Tables as files: CSV for programs, Markdown for documents."""

import csv
import io

from adagp.report.table import Table


def to_csv(table: Table) -> str:
    """Headings and rows; the notes are for people."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """Title, table and notes."""
    rule = ["---" if place < table.text_columns else "--:" for place in range(len(table.columns))]
    lines = [_row(table.columns), _row(rule), *(_row(row) for row in table.rows)]
    notes = "".join(f"- {note}\n" for note in table.notes)
    return f"**{table.title}**\n\n" + "\n".join(lines) + "\n" + (f"\n{notes}" if notes else "")


def _row(cells: tuple[str, ...] | list[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
