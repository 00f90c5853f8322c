"""`adagp pipeline`: when each device of a pipeline does what, and how many steps that takes."""

import json
import math
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from adagp.accelerator.pipeline import SCHEMES, Pipeline, Slot, Timeline, costs, simulate
from adagp.cli import options
from adagp.cli.common import InputError, check_folders, command, print_files, print_json, refusals, write_text
from adagp.report.pipeline import (
    PASSES,
    chrome_trace,
    letter,
    number,
    pipeline_figures,
    pipeline_grid,
    pipeline_page,
    pipeline_record,
    pipeline_svg,
)
from adagp.report.table import Table
from adagp.schedules import Phase

EPILOG = "Schedules of the pipeline:\n\n" + "\n".join(f"- `{name}`: {about}." for name, about in SCHEMES.items())
PASSES_LIMIT = 100_000
SHORTEST, LONGEST = 1e-6, 1e9
SMALLEST_SCALE = 0.01
_BOUNDS = f"must be 0 or from {SHORTEST:g} to {LONGEST:g} steps"
Svg = Annotated[Path | None, typer.Option(help="Also draw it into this SVG file.")]
Html = Annotated[Path | None, typer.Option(help="Also draw it into this HTML file, with a tooltip on every pass.")]


@command
def pipeline_command(
    schedule: Annotated[str, typer.Option(help=f"One of {', '.join(SCHEMES)}.")] = "gpipe",
    devices: Annotated[int, typer.Option(help="Devices, and as many stages.")] = 4,
    microbatches: Annotated[int, typer.Option(help="Micro-batches in a batch.")] = 4,
    phases: Annotated[
        str,
        typer.Option(
            metavar="PHASE,...",
            help="Phases of the batches: BP, GP or WARMUP, such as GP,BP or 4GP,BP. BP@0.5 has half-size samples.",
        ),
    ] = "BP",
    forward: Annotated[str, typer.Option(metavar="N[,N...]", help="Steps of a forward, for all stages or each.")] = "1",
    backward: Annotated[str, typer.Option(metavar="N[,N...]", help="Steps of a backward.")] = "2",
    predictor: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Steps the predictor adds to a forward; to a backward, twice that.")
    ] = "0",
    communication: Annotated[float, typer.Option(help="Steps of a message between devices.")] = 0,
    svg: Svg = None,
    html: Html = None,
    trace: Annotated[
        Path | None, typer.Option(help="Also write a Chrome trace (JSON) for Perfetto or chrome://tracing.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Simulate a pipeline in any sequence of phases: its steps, and which device does what when.

    A step is the forward of one micro-batch through one stage. A stage starts a batch when its update of the batch
    before is done: in BP after its last backward, in GP after its last forward. Under `zero-bubble` half of a backward
    is the gradient of the weights. Under `local` a BP batch learns from a loss of each stage.

    Try:

    - `adagp pipeline --schedule gpipe --phases BP`: one batch by backpropagation, 21 steps.
    - `adagp pipeline --schedule chimera --phases GP,BP`: a GP batch and a BP batch, 20 steps.
    - `adagp pipeline --schedule chimera --phases BP@0.5,BP`: a BP batch of half-size images instead, also 20 steps.
    - `adagp pipeline --schedule dapple --devices 8 --microbatches 16 --phases 4GP,BP --predictor 0.05`
    - `adagp pipeline --schedule zero-bubble`: the backward in two parts, 15 steps.
    - `adagp pipeline --schedule local --phases 3BP`: local losses, 39 steps; GPipe takes 63.
    - `adagp pipeline --forward 1,2,1,1 --backward 2,4,2,2 --communication 0.5`: a slow stage, slow messages.
    - `adagp pipeline --phases GP,BP --svg pipeline.svg --trace pipeline.json`: a picture, and a trace.
    """
    del debug
    check_folders(svg, html, trace)
    if schedule not in SCHEMES:
        raise InputError(f"schedule '{schedule}' is unknown; choose one of {', '.join(SCHEMES)}")
    with refusals():
        pipeline = Pipeline(schedule, devices, microbatches, *_batches(phases, devices, microbatches))
        message = _steps("communication", communication)
        stages = _values("forward", forward), _values("backward", backward)
        timeline = simulate(pipeline, costs(devices, *stages, _values("predictor", predictor), message))
        plain = simulate(pipeline.all_bp(), costs(devices, *stages, communication=message))
    title = f"{schedule}, {devices} devices, {microbatches} micro-batches, {_in_words(pipeline)}"
    figures = pipeline_figures(timeline, plain)
    if svg is not None:
        write_text(svg, pipeline_svg([(f"{title}: {timeline.steps:g} steps", timeline)]))
    if html is not None:
        table = Table("In figures", ("figure", "value"), list(figures.items()), text_columns=2)
        write_text(html, pipeline_page(title, table, [(_in_words(pipeline), timeline)]))
    if trace is not None:
        write_text(trace, json.dumps(chrome_trace(timeline)))
    if as_json:
        print_json(pipeline_record(timeline, plain))
        return
    _print_grid(title, timeline)
    for name, value in figures.items():
        print(f"{name}: {value}")
    print_files(picture=svg, page=html, trace=trace)


def _batches(text: str, devices: int, microbatches: int) -> tuple[tuple[Phase, ...], tuple[float, ...]]:
    """The phases and scales of the text, in which `4GP,BP` is short for `GP,GP,GP,GP,BP`."""
    counted: list[tuple[Phase, float, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{0,18})\s*(BP|GP|WARMUP)\s*(@.*)?", part, re.IGNORECASE)
        if match is None or match[1] == "0":
            raise ValueError(f"phases: '{part}' is not BP, GP or WARMUP; give for example GP,BP or 4GP,BP")
        phase = Phase(match[2].upper())
        counted.append((phase, _scale(part, phase, match[3]), int(match[1] or 1)))
    batches = sum(count for _, _, count in counted)
    if devices * microbatches * batches > PASSES_LIMIT:
        raise ValueError(
            f"devices x microbatches x batches = {devices} x {microbatches} x {batches} would take minutes or more: at "
            f"most {PASSES_LIMIT} are simulated; phases repeat themselves, so give fewer batches, or use fewer devices"
        )
    repeated = [(phase, scale) for phase, scale, count in counted for _ in range(count)]
    phases, scales = zip(*repeated, strict=True)
    return phases, scales


def _scale(part: str, phase: Phase, text: str | None) -> float:
    """The scale after the @ of a coarse batch; 1 if there is none."""
    if text is None:
        return 1.0
    if phase is not Phase.BP:
        raise ValueError(
            f"phases: '{part}': only BP batches can be coarse, because predictions are made and learned at full size; "
            f"give {phase.value}, or for example BP@0.5"
        )
    try:
        scale = float(text[1:])
    except ValueError:
        scale = math.nan
    if not SMALLEST_SCALE <= scale <= 1:
        raise ValueError(
            f"phases: '{part}': after the @ stands a fraction of the samples' size, from {SMALLEST_SCALE:g} to 1; "
            "give for example BP@0.5"
        )
    return scale


def _values(name: str, text: str) -> float | list[float]:
    """One number for all stages, or a list."""
    try:
        values = [_steps(name, float(part)) for part in text.split(",")]
    except ValueError as error:
        if _BOUNDS in str(error):
            raise
        raise ValueError(f"{name}: '{text}' is not a number or a list of numbers; give for example 1,2,1,1") from None
    return values if len(values) > 1 else values[0]


def _steps(name: str, value: float) -> float:
    """A time that a grid can show; negative and infinite ones are refused by the costs."""
    if 0 < value < SHORTEST or LONGEST < value < math.inf:
        raise ValueError(f"{name}={value}: {_BOUNDS}")
    return _plain(value)


def _plain(value: float) -> float:
    """Whole numbers as integers, so that their sums are exact and print as such."""
    return int(value) if value.is_integer() else value


def _in_words(pipeline: Pipeline) -> str:
    names = " ".join(pipeline.labels)
    return f"phase {names}" if len(pipeline.phases) == 1 else f"phases {names}"


def _print_grid(title: str, timeline: Timeline) -> None:
    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    grid = pipeline_grid(timeline)
    if grid is None:
        print("  the grid is too wide for a terminal: draw it with --svg or --html")
        return
    left = len(f"device {timeline.pipeline.devices - 1}")
    width = max(2, len(str(number(timeline, timeline.slots[-1]))) + 1)
    columns = len(grid.rows[0])
    fit = max(1, (console.width - left) // (width + 1))
    for first in range(0, columns, fit):
        if fit < columns:
            print(f"from step {first * grid.column:g}")
        for device, row in enumerate(grid.rows):
            line = Text(f"device {device}".ljust(left))
            for before, slot in list(zip([None, *row], row, strict=False))[first : first + fit]:
                line.append(" ")
                line.append_text(_cell(timeline, before, slot, width))
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
    legend = Text()
    shown = {letter(timeline, slot) for slot in timeline.slots}
    for kind, (about, colour) in PASSES.items():
        if kind not in shown and kind not in "FBG":
            continue
        legend.append(f" {kind} ", style=f"#000000 on {colour}")
        legend.append(f" {about}   ")
    console.print(legend, no_wrap=True, crop=False, overflow="ignore")
    if grid.column != 1:
        print(f"a column is {grid.column:g} steps")


def _cell(timeline: Timeline, before: Slot | None, slot: Slot | None, width: int) -> Text:
    """A device's column of the grid, whose slot may have begun in the column before."""
    if slot is None:
        return Text("·".rjust(width), style="dim")
    kind = letter(timeline, slot)
    text = f"{kind}{number(timeline, slot)}" if slot is not before else "-" * width
    return Text(text.rjust(width), style=f"#000000 on {PASSES[kind][1]}")
