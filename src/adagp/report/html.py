"""HTML pages that hold their own style sheet, and tables for them."""

from html import escape

from adagp.report.table import Table

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 70rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid #0072b2; background: #eef5fa; padding: .8rem 1rem; font-size: 1.1rem;
  white-space: pre-line; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; max-width: 90vw; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th.text, td.text { text-align: left; }
thead th { border-bottom: 2px solid #222; }
img { width: 100%; min-width: 50rem; height: auto; border-radius: .5rem; }
svg { border-radius: .5rem; }
.notes { color: #555; font-size: .85rem; padding-left: 1.2rem; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #1a1a1a; } .verdict { background: #12293a; } .notes { color: #aaa; }
  th, td { border-color: #444; } thead th { border-color: #ddd; } img { background: #fff; filter: brightness(.88); }
}
"""


def document(title: str, body: str) -> str:
    """A whole page around `body`, which is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}</body>\n</html>\n"
    )


def table_html(table: Table) -> str:
    """A table with its title above and its notes below."""
    heads = "".join(
        f'<th scope="col"{_kind(place, table)}>{escape(column)}</th>' for place, column in enumerate(table.columns)
    )
    rows = "".join(
        "<tr>" + "".join(f"<td{_kind(place, table)}>{escape(cell)}</td>" for place, cell in enumerate(row)) + "</tr>\n"
        for row in table.rows
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<div class="scroll"><table>\n<caption>{escape(table.title)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


def _kind(place: int, table: Table) -> str:
    return ' class="text"' if place < table.text_columns else ""
