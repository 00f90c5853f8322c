"""`adagp reproduce fig10`, `fig11`, `fig12`: the ADA-GP paper's figures about pipelines."""

from collections.abc import Callable

from adagp.cli import options
from adagp.cli.common import command, print_json, print_table
from adagp.cli.pipeline import Html, Svg, check_folders
from adagp.report.pipeline_grid import pipeline_svg
from adagp.report.pipeline_page import pipeline_page
from adagp.reproduce.pipeline import SCHEMES, figure_table, panels
from adagp.training.files import write_bytes


def figure_command(figure: int) -> Callable[..., None]:
    """The command that draws one of figures 10 to 12."""

    @command
    def draw(svg: Svg = None, html: Html = None, as_json: options.Json = False, debug: options.Debug = False) -> None:
        del debug
        check_folders(svg, html)
        shown = panels(figure)
        table = figure_table(figure, shown)
        drawn = [(f"{panel.title}: {panel.timeline.steps:g} steps", panel.timeline) for panel in shown]
        if svg is not None:
            write_bytes(svg, pipeline_svg(drawn).encode())
        if html is not None:
            write_bytes(html, pipeline_page(table.title, table, drawn).encode())
        if as_json:
            print_json(
                {
                    "schedule": SCHEMES[figure],
                    "panels": [
                        {
                            "title": panel.title,
                            "phases": [phase.value for phase in panel.timeline.pipeline.phases],
                            "steps": panel.timeline.steps,
                            "paper_steps": panel.paper_steps,
                            "all_bp_steps": panel.plain_steps,
                        }
                        for panel in shown
                    ],
                }
            )
            return
        print_table(table)
        for what, path in (("picture", svg), ("page", html)):
            if path is not None:
                print(f"{what}: {path}")

    draw.__doc__ = f"""Figure {figure} of the ADA-GP paper: its phases over {SCHEMES[figure]}.

    Try:

    - `adagp reproduce fig{figure} --svg fig{figure}.svg`: the table, and a picture.
    """
    return draw
