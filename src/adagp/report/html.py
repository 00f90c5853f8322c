"""One HTML page that holds everything: no script, no style sheet, no picture from elsewhere."""

import base64
from html import escape
from pathlib import Path
from typing import Any

from adagp.report.document import document, table_html
from adagp.report.figures import overview_png
from adagp.report.table import Table
from adagp.report.tables import applied_table, comparison_table, seeds_table
from adagp.training.comparison.result import Comparison
from adagp.training.run.folder import write_file


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


def _pairs(title: str, values: dict[str, Any]) -> Table:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name} {inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    rows = [(name, "-" if value is None else str(value)) for name, value in flat.items()]
    return Table(title, ("name", "value"), rows, text_columns=2)
