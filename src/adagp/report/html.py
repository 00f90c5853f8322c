"""One HTML page that holds everything: no script, no style sheet, no picture from elsewhere."""

import base64
from html import escape
from pathlib import Path
from typing import Any

from adagp.report.figures import overview_png
from adagp.report.table import Table
from adagp.report.tables import applied_table, comparison_table, seeds_table
from adagp.training.compare import Comparison
from adagp.training.runfolder import write_file

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


def write_report(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Write `figures.png` and `report.html` into `folder`, atomically, and return their paths."""
    picture = overview_png(comparison)
    png, html = folder / "figures.png", folder / "report.html"
    write_file(png, picture)
    write_file(html, page(comparison, picture).encode())
    return png, html


def page(comparison: Comparison, picture: bytes) -> str:
    """The page, verdict first; `picture` is a PNG to embed."""
    recipe = comparison.recipe
    title = f"{recipe['model']} on {recipe['data']}: methods compared"
    image = base64.b64encode(picture).decode()
    methods = "".join(
        f"<li><b>{escape(result.method)}</b>: {escape(result.summary)}</li>" for result in comparison.methods
    )
    return document(
        title,
        f'<p class="verdict">{escape(comparison.verdict)}</p>\n'
        f"{table_html(comparison_table(comparison))}\n"
        f'<p class="scroll"><img alt="Score over epochs and over seconds, cosine per layer, milliseconds per batch" '
        f'src="data:image/png;base64,{image}"></p>\n'
        f"<h2>Methods</h2>\n<ul>{methods}</ul>\n"
        f"<h2>Details</h2>\n{table_html(seeds_table(comparison))}\n{table_html(applied_table(comparison))}\n"
        f"{_reasons(comparison)}"
        f"<h2>Recipe</h2>\n{table_html(_pairs('Recipe', recipe))}\n"
        f"<h2>Environment</h2>\n{table_html(_pairs('Environment', comparison.environment))}\n",
    )


def document(title: str, body: str) -> str:
    """A whole page around `body`, which is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}</body>\n</html>\n"
    )


def _reasons(comparison: Comparison) -> str:
    """Why adaptive schedules changed their k:m, seed by seed; empty where none did."""
    lists = "".join(
        f"<h3>{escape(result.method)}, seed {seed.seed}</h3>\n<ul>"
        + "".join(f"<li>{escape(reason)}</li>" for reason in seed.reasons)
        + "</ul>\n"
        for result in comparison.methods
        for seed in result.seeds
        if seed.reasons
    )
    return f"<h2>Why k:m changed</h2>\n{lists}" if lists else ""


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


def _pairs(title: str, values: dict[str, Any]) -> Table:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name} {inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    rows = [(name, "-" if value is None else str(value)) for name, value in flat.items()]
    return Table(title, ("name", "value"), rows, text_columns=2)
