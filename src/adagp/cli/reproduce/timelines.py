"""`adagp reproduce fig7-9`: the ADA-GP paper's timelines of one chip, and its claim about synchronisation."""

from typing import Annotated

import typer

from adagp.cli import options
from adagp.cli.common import check_folders, command, print_files, print_json, print_table, refusals, write_text
from adagp.cli.pipeline import Svg
from adagp.report.pipeline import pipeline_svg
from adagp.reproduce.timelines import (
    all_synchronisations,
    chip_timelines,
    synchronisations_table,
    timelines_table,
)


@command
def timelines_command(
    predictor: Annotated[
        float, typer.Option(min=0, max=1, help="The predictor's forward, in forwards of a layer: the paper's alpha.")
    ] = 0.1,
    svg: Svg = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Figures 7 to 9 of the ADA-GP paper: one chip, layer by layer; and how often devices wait for each other.

    The paper says that ADA-GP halves the synchronisation steps of a pipeline. The second table counts them.

    Try:

    - `adagp reproduce fig7-9`: the steps of a batch, the paper's beside ours, and how often devices wait.
    - `adagp reproduce fig7-9 --predictor 0.25 --svg timelines.svg`: a dearer predictor, and a picture.
    """
    del debug
    check_folders(svg)
    with refusals():
        shown = chip_timelines(predictor)
    found = all_synchronisations()
    if svg is not None:
        drawn = [
            (f"Figure {each.figure}, {each.title}: {each.timeline.steps:g} steps", each.timeline) for each in shown
        ]
        write_text(svg, pipeline_svg(drawn))
    if as_json:
        print_json(
            {
                "predictor": predictor,
                "timelines": [each.plain() for each in shown],
                "synchronisations": [each.plain() for each in found],
            }
        )
        return
    print_table(timelines_table(shown, predictor))
    print()
    print_table(synchronisations_table(found))
    print_files(picture=svg)
