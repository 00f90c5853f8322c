"""Simulated pipelines as one HTML page: the figures, and the grids with a tooltip on every slot."""

from collections.abc import Sequence

from adagp.accelerator.pipeline import Timeline
from adagp.report.document import document, table_html
from adagp.report.pipeline_grid import pipeline_svg
from adagp.report.table import Table


def pipeline_page(title: str, table: Table, panels: Sequence[tuple[str, Timeline]]) -> str:
    """A table and below it the timelines, each with its title, on one scale."""
    return document(title, f'{table_html(table)}\n<div class="scroll">{pipeline_svg(panels)}</div>\n')
