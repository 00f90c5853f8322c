"""`adagp reproduce fig10`, `fig11`, `fig12` and `fig20`: the ADA-GP paper's figures about pipelines."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from adagp.accelerator import Design, Machine, Setting
from adagp.cli import options
from adagp.cli.common import (
    InputError,
    check_folders,
    check_pictures,
    command,
    print_files,
    print_json,
    print_table,
    print_tables,
    refusals,
    write_text,
)
from adagp.cli.display import Display
from adagp.cli.machine_options import DEFAULTS, Dataflow
from adagp.cli.pipeline import Html, Svg
from adagp.files import write_bytes
from adagp.report.pipeline import pipeline_page, pipeline_svg
from adagp.report.plot import picture_format
from adagp.reproduce.figure20 import PAPER, bars, bars_tables, picture_bars
from adagp.reproduce.pipeline import SCHEMES, figure_table, panels

DESIGNS = [design.value for design in Design if design is not Design.BASELINE]


def _figure_command(figure: int) -> Callable[..., None]:
    @command
    def draw(svg: Svg = None, html: Html = None, as_json: options.Json = False, debug: options.Debug = False) -> None:
        del debug
        check_folders(svg, html)
        shown = panels(figure)
        table = figure_table(figure, shown)
        drawn = [(f"{panel.title}: {panel.timeline.steps:g} steps", panel.timeline) for panel in shown]
        if svg is not None:
            write_text(svg, pipeline_svg(drawn))
        if html is not None:
            write_text(html, pipeline_page(table.title, table, drawn))
        if as_json:
            print_json({"schedule": SCHEMES[figure], "panels": [panel.plain() for panel in shown]})
            return
        print_table(table)
        print_files(picture=svg, page=html)

    draw.__doc__ = f"""Figure {figure} of the ADA-GP paper: its phases over {SCHEMES[figure]}.

    Try:

    - `adagp reproduce fig{figure} --svg fig{figure}.svg`: the table, and a picture.
    """
    return draw


fig10_command, fig11_command, fig12_command = (_figure_command(figure) for figure in (10, 11, 12))


@command
def fig20_command(
    batch: Annotated[
        int, typer.Option(help="Samples in a batch; a micro-batch has a quarter of them.")
    ] = DEFAULTS.batch,
    epochs: Annotated[
        int, typer.Option(help="Length of the whole training; 10 epochs of it are warm-up.")
    ] = DEFAULTS.epochs,
    design: Annotated[str, typer.Option(help=f"One of {', '.join(DESIGNS)}.")] = Design.MAX.value,
    dataflow: Dataflow = DEFAULTS.dataflow,
    picture: options.Picture = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Figure 20 of the ADA-GP paper: its speed-up over GPipe, DAPPLE and Chimera for thirteen networks on ImageNet.

    Four devices with 180 PEs each; a network's layers are cut into four stages of about the same cycles.

    Try:

    - `adagp reproduce fig20`: the paper's case, and the whole training.
    - `adagp reproduce fig20 --picture fig20.png`: the speed-ups as bars; those of coarse batches are hatched.
    - `adagp reproduce fig20 --design efficient --batch 512`: the predictor on the same array, larger micro-batches.
    """
    del debug
    check_pictures(picture)
    if design not in DESIGNS:
        raise InputError(f"design '{design}' is unknown; choose one of {', '.join(DESIGNS)}")
    chosen = Design(design)
    with refusals(), Display(as_json) as display:
        setting = Setting(batch, epochs, Machine(dataflow=dataflow))
        found = bars(setting, chosen, display.on_message)
    if picture is not None:
        from adagp.report.accelerator_plots import bars_picture

        title = f"Figure 20: speed-up of a cheap and a BP batch of {batch}, {dataflow}; progressive: {epochs} epochs"
        paper, ours = picture_bars(found, chosen)
        means = {scheme: mean for scheme, (_, mean) in PAPER.items()}
        write_bytes(picture, bars_picture(paper, title, "speed-up", means, picture_format(picture), ours))
    if as_json:
        print_json(
            {
                "batch": batch,
                "epochs": epochs,
                "design": design,
                "machine": asdict(setting.machine),
                "networks": [{**asdict(bar), "imbalance": bar.staged.imbalance} for bar in found],
                "paper": {scheme: {"largest": largest, "mean": mean} for scheme, (largest, mean) in PAPER.items()},
            }
        )
        return
    print_tables(bars_tables(found, setting, chosen), {}, as_json)
