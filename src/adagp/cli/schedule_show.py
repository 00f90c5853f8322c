"""`adagp schedule show`: any schedule as a grid of layers and batches, with shares and the expected cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from adagp import models, schedules
from adagp.cli import options
from adagp.cli.common import check_folders, check_pictures, command, print_files, print_json
from adagp.cli.session import schedule_value
from adagp.files import write_bytes
from adagp.report.plot import picture_format
from adagp.report.schedule import ScheduleGrid, grid_picture, schedule_grid
from adagp.schedules import Schedule
from adagp.schedules.sources import names, spec
from adagp.training import RecipeError

if TYPE_CHECKING:
    import torch
    from torch import nn

STEPS_PER_EPOCH = 390  # CIFAR-10 in batches of 128; it sets the length of the ladder's warm-up and rungs
INPUT_SHAPE = (128, 3, 32, 32)
_NAMES = (*schedules.APPROXIMATIONS, "ladder", "progressive")
SCHEDULES_HELP = "\n".join(
    [
        "Schedules:\n",
        *(f"- `{name}`: {about}." for name, about in schedules.APPROXIMATIONS.items()),
        f"- `ladder`: ADA-GP's, at {STEPS_PER_EPOCH} batches an epoch.",
        "- `progressive`: half-size samples first, full size at the end, over as many batches as are shown.",
        "- a file: a table of yours; begin with `--write-table`.",
    ]
)


@command
def show_command(
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help=f"One of {', '.join(_NAMES)}, or a table file. Default: 1.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help=f"The source that replaces backprop: {', '.join(sorted(names() - {'backprop'}))}. "
            f"Default: zero, and predicted for the ladder; {schedules.COARSE} makes its GP batches BP batches of "
            "smaller samples.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="The model; `adagp models` lists them.")] = "resnet20",
    until: Annotated[
        str | None, typer.Option(help="Make the ladder a prefix: predicted up to this layer or module, exact after it.")
    ] = None,
    topk: options.TopK = None,
    batches: Annotated[int, typer.Option(min=1, max=10_000, help="How many batches to show.")] = 8,
    start: Annotated[
        int | None,
        typer.Option(min=0, max=10**9, help="Batches before the first shown. Default: 0; for the ladder, its warm-up."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw it into this file, .png or .svg.")] = None,
    write_table: Annotated[
        Path | None, typer.Option(help="Also write it as a table to this file, to begin your own from.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Draw a schedule: which source supplies each layer's gradient in each batch, and what that costs.

    Try:

    - `adagp schedule show --schedule 2 --source topk`: every other layer in every other batch.
    - `adagp schedule show --until stages.0`: the first stage predicted, the rest exact.
    - `adagp schedule show --write-table mine.txt`: edit the file, then `adagp schedule show --schedule mine.txt`.
    - `adagp schedule show --schedule 3 --picture schedule.png`: a picture of it.
    """
    del debug
    from adagp.cost import CostModel
    from adagp.training.planning import outline

    _check_files(picture, write_table)
    try:
        net = outline(model)
        layers = schedules.layer_names(net)
        name, chosen = _schedule(schedule, source, until, net, layers, batches)
        first = _warmup(chosen) if start is None else start
        steps = range(first, first + batches)
        grid = schedule_grid(chosen, layers, steps)
        shape, dtype = _samples(model)
        cost = CostModel(net, shape, k=topk or 1, dtype=dtype).relative(chosen, steps)
        table = _table(chosen, layers, steps)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    if topk is not None and "topk" not in grid.shares():
        raise RecipeError(f"topk = {topk} would change nothing: no layer has the source topk; add --source topk")
    title = f"{model}, {name}"
    if picture is not None:
        about = f"{title}\n{100 * cost:.1f} % of plain BP's multiply-adds"
        write_bytes(picture, grid_picture(grid, about, picture_format(picture)))
    if write_table is not None:
        write_bytes(write_table, f"# {title}, batches {first + 1} to {first + batches}\n{table}".encode())
    if as_json:
        print_json(
            {
                "model": model,
                "schedule": name,
                "batches": grid.batches,
                "phases": grid.phases,
                "scales": grid.scales,
                "layers": grid.sources,
                "shares": grid.shares(),
                "relative_multiply_adds": cost,
                "input_shape": shape,
            }
        )
        return
    _print_grid(title, grid)
    count, *size = shape
    items = "images" if len(size) > 1 else "sequences"
    print(
        f"expected cost: {100 * cost:.1f} % of the multiply-adds of plain backpropagation\n"
        f"  counted, not timed: products of the layers for {count} {items} of {' x '.join(map(str, size))}; "
        "not norms, the optimizer or the predictor's learning"
    )
    print_files(picture=picture, table=write_table)


def _samples(model: str) -> tuple[tuple[int, ...], "torch.dtype"]:
    """Shape and type of the batch that is counted."""
    import torch

    if models.task(model) != "next-token":
        return INPUT_SHAPE, torch.float32
    with torch.device("meta"):
        (tokens,) = models.example_inputs(model, batch=INPUT_SHAPE[0])
    return tuple(tokens.shape), tokens.dtype


def _check_files(picture: Path | None, write_table: Path | None) -> None:
    """Check before any work that both files can be written, and that no table of the user's is overwritten."""
    check_pictures(picture)
    check_folders(write_table)
    if write_table is not None and write_table.exists():
        raise RecipeError(f"table '{write_table}' exists already and may be yours: give another name, or remove it")


def _schedule(
    schedule: str | None, source: str | None, until: str | None, model: "nn.Module", layers: list[str], batches: int
) -> tuple[str, Schedule]:
    """The schedule of the options, and its title."""
    name = schedule or ("1" if until is None else "ladder")
    if until is not None and name != "ladder":
        raise RecipeError(f"--until makes a prefix of the ladder, not of schedule {name}: leave one of them out")
    if name == "ladder":
        ladder = schedules.ladder(STEPS_PER_EPOCH, source=source or "predicted")
        if until is None:
            return f"{ladder.source}, ladder", ladder
        prefix = schedules.prefix(model, until, ladder)
        if prefix.problem:
            raise RecipeError(prefix.problem)
        return f"{ladder.source} up to {until}, ladder", prefix
    if name == "progressive":
        if source is not None:
            raise RecipeError(f"--source {source} would change nothing: schedule progressive is all backprop")
        return "progressive", schedules.progressive(batches)
    if name in schedules.APPROXIMATIONS:
        approximated = source or "zero"
        convolutions = schedules.layer_names(model, include="Conv")  # the layers that the paper and `adagp train` count
        return f"{approximated}, schedule {name}", schedules.approximation(name, convolutions, approximated)
    table = schedule_value(name) or ""
    if table == name:
        raise RecipeError(f"schedule '{name}' is neither a file nor one of {', '.join(_NAMES)}")
    if source is not None:
        raise RecipeError(f"--source {source} would change nothing: the table '{name}' names the sources itself")
    try:
        return Path(name).name, schedules.from_table(table, layers)
    except ValueError as error:
        raise RecipeError(f"table '{name}': {error}") from error


def _warmup(schedule: Schedule) -> int:
    """The first batch after the warm-up, in which every batch is exact."""
    step = 0
    while schedule(step).phase is schedules.Phase.WARMUP:
        step += 1
    return step


def _table(schedule: Schedule, layers: list[str], steps: range) -> str:
    """The table of these steps, with a warning if the schedule says more than a table can hold."""
    text = schedules.to_table(lambda step: schedule(steps.start + step), layers, len(steps))
    plans = [schedule(step) for step in steps]
    if any(plan.is_coarse for plan in plans):
        return f"# only sources are written: in a table every batch has samples of full size\n{text}"
    if all(plan.phase is schedules.Phase.BP and plan.overrides.keys() <= set(layers) for plan in plans):
        return text
    return f"# only sources are written: in a table every batch is BP, and norms train in all of them\n{text}"


def _print_grid(title: str, grid: ScheduleGrid) -> None:
    console = Console(highlight=False)
    left = max(map(len, [*grid.sources, "batch"]))
    width = max(2, len(str(grid.batches[-1])))
    lines = [
        Text(title, style="bold"),
        Text("  ".join(["batch".ljust(left), *(str(batch).rjust(width) for batch in grid.batches)])),
        Text("  ".join(["phase".ljust(left), *(phase[:2].rjust(width) for phase in grid.phases)]), style="dim"),
    ]
    if grid.is_coarse:
        sizes = [f"{scale:g}".lstrip("0").rjust(width) for scale in grid.scales]
        lines.append(Text("  ".join(["scale".ljust(left), *sizes]), style="dim"))
    for layer, sources in grid.sources.items():
        line = Text(layer.ljust(left))
        for source in sources:
            style = spec(source)
            line.append("  ").append(style.letter.rjust(width), style=f"#000000 on {style.colour}")
        lines.append(line)
    legend = Text()
    for source, share in grid.shares().items():
        style = spec(source)
        legend.append(f" {style.letter} ", style=f"#000000 on {style.colour}")
        legend.append(f" {source} {100 * share:.1f} %   ")
    for line in [*lines, Text(), legend]:
        console.print(line, no_wrap=True, crop=False, overflow="ignore")
