"""`adagp reproduce fig16` to `fig19`, `fig21`, `table2-cycles`, `table3-cycles`, `iso-power` and `iso-area`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from adagp.accelerator import COST_TABLES, DATA_SHAPES, Design, Setting, Simulation
from adagp.cli import machine_options as machines
from adagp.cli import options
from adagp.cli.common import InputError, check_pictures, command, print_tables, progress_line
from adagp.cli.machine_options import DEFAULTS, machine_with
from adagp.extras import require
from adagp.files import write_bytes
from adagp.report.accelerator_figures import bars_picture, layers_picture, picture_format
from adagp.reproduce import accelerator as paper

T = TypeVar("T")

Picture = Annotated[Path | None, typer.Option(help="Also draw the figure into this file, .png or .svg.")]
Levers = Annotated[
    bool, typer.Option("--levers", help="Also show what each assumption moves; takes ten times as long.")
]


def add_commands(app: typer.Typer) -> None:
    """Add every command of this file to `adagp reproduce`."""
    app.command("fig16")(figure16_command)
    for figure in paper.FIGURES:
        app.command(f"fig{figure}")(_speed_up_command(figure))
    app.command("fig21")(figure21_command)
    for number in paper.TABLE_NETWORKS:
        app.command(f"table{number}-cycles")(_cycles_command(number))
    for which in paper.ISO:
        app.command(f"iso-{which}")(_iso_command(which))


@command
def figure16_command(
    data_name: Annotated[str, typer.Option("--data", help="What VGG13 is trained on.")] = "cifar10",
    batch: machines.Batch = DEFAULTS.batch,
    epochs: machines.Epochs = DEFAULTS.epochs,
    array: machines.ArrayShape = DEFAULTS.array,
    grid: machines.Grid = DEFAULTS.grid,
    picture: Picture = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Figure 16 of the ADA-GP paper: VGG13 layer by layer, plain and with ADA-GP-Efficient.

    Try:

    - `adagp reproduce fig16 --picture fig16.png`: the table and the picture.
    """
    del debug
    check_pictures(picture)
    setting = _setting(batch, epochs, array=array, grid=grid)
    _check_picture(picture)
    simulation = _checked(lambda: paper.simulated("vgg13", data_name, setting))
    title = f"VGG13 on {data_name}, batch {batch}, {epochs} epochs"
    if picture is not None:
        write_bytes(picture, layers_picture(simulation, Design.EFFICIENT, title, _format(picture)))
    print_tables([paper.figure16_table(simulation, setting)], {}, as_json)


def _speed_up_command(figure: int) -> Callable[..., None]:
    dataflow = paper.FIGURES[figure]

    @command
    def draw(
        batch: machines.Batch = DEFAULTS.batch,
        epochs: machines.Epochs = DEFAULTS.epochs,
        array: machines.ArrayShape = DEFAULTS.array,
        grid: machines.Grid = DEFAULTS.grid,
        levers: Levers = False,
        picture: Picture = None,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        check_pictures(picture)
        setting = _setting(batch, epochs, array=array, grid=grid, dataflow=dataflow)
        _check_picture(picture)
        found = _checked(lambda: paper.grid(setting, progress_line))
        tables = [paper.speed_up_table(figure, found, setting)]
        if levers:
            tables.append(paper.levers_table(figure, setting, progress_line))
        bars = paper.plain_grid(found, Simulation.speed_up)
        if picture is not None:
            title = f"Figure {figure}: speed-up, dataflow {dataflow}, batch {batch}, {epochs} epochs"
            averages = paper.PAPER_AVERAGES[figure]
            write_bytes(picture, bars_picture(bars, title, "speed-up", averages, _format(picture)))
        print_tables(tables, {"speed_ups": _named(bars)}, as_json)

    draw.__doc__ = f"""Figure {figure} of the ADA-GP paper: speed-up of the three designs, dataflow {dataflow}.

    Try:

    - `adagp reproduce fig{figure} --picture fig{figure}.png`: 13 networks on 3 data sets.
    - `adagp reproduce fig{figure} --batch 16`: where the designs differ.
    """
    return draw


@command
def figure21_command(
    batch: machines.Batch = DEFAULTS.batch,
    epochs: machines.Epochs = DEFAULTS.epochs,
    policy: machines.PolicyName = DEFAULTS.policy,
    picture: Picture = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Figure 21 of the ADA-GP paper: memory energy, and what every policy and table of energies gives.

    Try:

    - `adagp reproduce fig21 --picture fig21.png`: 13 networks on 3 data sets.
    """
    del debug
    check_pictures(picture)
    setting = _setting(batch, epochs, policy=policy)
    _check_picture(picture)
    found = _checked(lambda: paper.grid(setting, progress_line))
    eyeriss = COST_TABLES["eyeriss"]
    bars = paper.plain_grid(found, lambda each, design: 100 * each.energy_saved(design, eyeriss))
    if picture is not None:
        title = f"Figure 21: memory energy saved, policy {policy}, batch {batch}, {epochs} epochs"
        averages = dict.fromkeys(bars, 100 * paper.PAPER_ENERGY_SAVED)
        write_bytes(picture, bars_picture(bars, title, "saved, %", averages, _format(picture)))
    print_tables(paper.figure21_tables(found, setting, progress_line), {"saved_percent": _named(bars)}, as_json)


def _cycles_command(number: int) -> Callable[..., None]:
    model, data = paper.TABLE_NETWORKS[number]

    @command
    def show(
        batch: machines.Batch = DEFAULTS.batch,
        epochs: machines.Epochs = DEFAULTS.epochs,
        array: machines.ArrayShape = DEFAULTS.array,
        grid: machines.Grid = DEFAULTS.grid,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        setting = _setting(batch, epochs, array=array, grid=grid)
        simulation = _checked(lambda: paper.simulated(model, data, setting))
        batches = epochs * -(-DATA_SHAPES[data].samples // batch)
        print_tables([paper.cycles_table(number, simulation, setting, batches)], {"batches": batches}, as_json)

    show.__doc__ = f"""The cycles of table {number} of the ADA-GP paper: {model} on {data}.

    Try:

    - `adagp reproduce table{number}-cycles --batch 8`: a small batch, in which the predictor weighs more.
    """
    return show


def _iso_command(which: str) -> Callable[..., None]:
    @command
    def show(
        batch: machines.Batch = DEFAULTS.batch,
        epochs: machines.Epochs = DEFAULTS.epochs,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        setting = Setting(batch, epochs)
        print_tables([_checked(lambda: paper.iso_table(which, setting, progress_line))], {}, as_json)

    show.__doc__ = f"""Section 6.6.1 of the ADA-GP paper: MAX beside a larger baseline of equal {which}."""
    return show


def _setting(batch: int, epochs: int, **machine: str | int) -> Setting:
    return _checked(lambda: Setting(batch, epochs, machine_with(machine)))


def _check_picture(picture: Path | None) -> None:
    """Before any work: the picture's format is known, and it can be drawn."""
    if picture is not None:
        _format(picture)
        require("matplotlib")


def _format(picture: Path) -> str:
    return _checked(lambda: picture_format(picture))


def _checked(make: Callable[[], T]) -> T:
    """What the model refuses is an option that cannot be."""
    try:
        return make()
    except ValueError as error:
        raise InputError(str(error)) from error


def _named(bars: dict[str, dict[str, dict[Design, float]]]) -> dict[str, Any]:
    return {
        data: {model: {design.value: value for design, value in each.items()} for model, each in networks.items()}
        for data, networks in bars.items()
    }
