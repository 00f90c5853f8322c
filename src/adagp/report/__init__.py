"""Results for people: tables, figures, and one self-contained HTML page."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily
from adagp.report.export import to_csv, to_markdown
from adagp.report.schedule_grid import PICTURE_FORMATS, ScheduleGrid, grid_picture, schedule_grid
from adagp.report.table import Table

if TYPE_CHECKING:
    from adagp.report.figures import overview_png
    from adagp.report.html import page, write_report
    from adagp.report.tables import comparison_table, schedule_table, seeds_table

__all__ = [
    "PICTURE_FORMATS",
    "ScheduleGrid",
    "Table",
    "comparison_table",
    "grid_picture",
    "overview_png",
    "page",
    "schedule_grid",
    "schedule_table",
    "seeds_table",
    "to_csv",
    "to_markdown",
    "write_report",
]

__getattr__ = lazily(
    __name__,
    {
        "comparison_table": "adagp.report.tables",
        "overview_png": "adagp.report.figures",
        "page": "adagp.report.html",
        "schedule_table": "adagp.report.tables",
        "seeds_table": "adagp.report.tables",
        "write_report": "adagp.report.html",
    },
)
