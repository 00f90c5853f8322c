"""Results for people: tables, pictures and HTML pages, by subject."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.report.comparison import comparison_table, page, seeds_table, write_report
    from adagp.report.comparison_plots import overview_png
    from adagp.report.schedule import ScheduleGrid, grid_picture, schedule_grid, schedule_table
    from adagp.report.table import Table, to_csv, to_markdown

__all__ = [
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
        "ScheduleGrid": "adagp.report.schedule",
        "Table": "adagp.report.table",
        "comparison_table": "adagp.report.comparison",
        "grid_picture": "adagp.report.schedule",
        "overview_png": "adagp.report.comparison_plots",
        "page": "adagp.report.comparison",
        "schedule_grid": "adagp.report.schedule",
        "schedule_table": "adagp.report.schedule",
        "seeds_table": "adagp.report.comparison",
        "to_csv": "adagp.report.table",
        "to_markdown": "adagp.report.table",
        "write_report": "adagp.report.comparison",
    },
)
