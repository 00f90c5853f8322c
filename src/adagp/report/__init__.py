"""Results for people: tables, figures, and one self-contained HTML page."""

from adagp.report.figures import overview_png
from adagp.report.html import page, write_report
from adagp.report.tables import Table, comparison_table, schedule_table, seeds_table

__all__ = ["Table", "comparison_table", "overview_png", "page", "schedule_table", "seeds_table", "write_report"]
