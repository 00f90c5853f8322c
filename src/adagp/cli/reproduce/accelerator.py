"""`adagp reproduce fig16` to `fig19`, `fig21`, `table2-cycles`, `table3-cycles`, `iso-power` and `iso-area`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from adagp.accelerator import COST_TABLES, DATA_SHAPES, IMAGE_SETS, Design, Setting, Simulation
from adagp.accelerator.shapes import require_known
from adagp.cli import machine_options as machines
from adagp.cli import options
from adagp.cli.common import InputError, check_pictures, command, print_tables, progress_line, refusals
from adagp.cli.machine_options import DEFAULTS, machine_with
from adagp.files import write_bytes
from adagp.report.plot import picture_format
from adagp.reproduce import accelerator as paper
from adagp.reproduce import coarse

Levers = Annotated[
    bool, typer.Option("--levers", help="Also show what each assumption moves; takes ten times as long.")
]


@dataclass(frozen=True)
class TrainingOptions:
    """The training that is simulated, and the machine that it runs on."""

    batch: machines.Batch = DEFAULTS.batch
    epochs: machines.Epochs = DEFAULTS.epochs
    array: machines.ArrayShape = DEFAULTS.array
    grid: machines.Grid = DEFAULTS.grid
    bandwidth: machines.Bandwidth = DEFAULTS.bandwidth
    latency: machines.Latency = DEFAULTS.latency
    stalls: machines.Stalls = False
    tiles: machines.Tiles = False

    def setting(self, dataflow: str = DEFAULTS.dataflow) -> Setting:
        """The setting that the accelerator model simulates.

        Raises:
            ValueError: for an impossible value, naming it.
        """
        values = {name: value for name, value in asdict(self).items() if name not in ("batch", "epochs")}
        machine = machine_with({**values, "dataflow": dataflow})
        return Setting(self.batch, self.epochs, machine)


@command
@options.spread
@refusals()
def fig16_command(
    *,
    data_name: Annotated[str, typer.Option("--data", help="What VGG13 is trained on.")] = "cifar10",
    training: TrainingOptions,
    picture: options.Picture = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Figure 16 of the ADA-GP paper: VGG13 layer by layer, plain and with ADA-GP-Efficient.

    Try:

    - `adagp reproduce fig16 --picture fig16.png`: the table and the picture.
    """
    del debug
    check_pictures(picture)
    setting = training.setting()
    simulation = paper.simulated("vgg13", data_name, setting)
    if picture is not None:
        from adagp.report.accelerator_plots import layers_picture

        title = f"VGG13 on {data_name}, batch {setting.batch}, {setting.epochs} epochs"
        write_bytes(picture, layers_picture(simulation, Design.EFFICIENT, title, picture_format(picture)))
    print_tables([paper.figure16_table(simulation, setting)], {}, as_json)


def _speed_up_command(figure: int) -> Callable[..., None]:
    dataflow = paper.FIGURES[figure]

    @command
    @options.spread
    @refusals()
    def draw(
        *,
        training: TrainingOptions,
        data_name: Annotated[
            str | None, typer.Option("--data", help=f"Only one of {', '.join(IMAGE_SETS)}. Default: all.")
        ] = None,
        levers: Levers = False,
        picture: options.Picture = None,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        check_pictures(picture)
        setting = training.setting(dataflow)
        if data_name is not None:
            require_known("data", data_name, IMAGE_SETS)
            if levers:
                raise InputError("levers: are shown for all data sets; leave out --data or --levers")
        sets = IMAGE_SETS if data_name is None else (data_name,)
        found = paper.grid(setting, progress_line, sets)
        tables = [paper.speed_up_table(figure, found, setting)]
        if levers:
            tables.append(paper.levers_table(figure, setting, progress_line))
        bars = paper.plain_grid(found, Simulation.speed_up)
        ours = coarse.gains(setting, Simulation.speed_up, progress_line, sets)
        title = f"Not in the paper: figure {figure}'s array with half-size BP batches instead of GP, speed-up"
        tables.append(coarse.gains_table(title, bars, Design.MAX, ours, setting))
        if picture is not None:
            from adagp.report.accelerator_plots import bars_picture

            title = f"Figure {figure}: speed-up, dataflow {dataflow}, batch {setting.batch}, {setting.epochs} epochs"
            averages = paper.PAPER_AVERAGES[figure]
            write_bytes(picture, bars_picture(bars, title, "speed-up", averages, picture_format(picture), ours))
        print_tables(tables, {"speed_ups": bars, "coarse_speed_ups": ours}, as_json)

    tiles = "\n    - `adagp reproduce fig17 --tiles --data cifar10`: with tiles and moves as the RTL; takes long." * (
        figure == 17
    )
    draw.__doc__ = f"""Figure {figure} of the ADA-GP paper: speed-up of the three designs, dataflow {dataflow}.

    Try:

    - `adagp reproduce fig{figure} --picture fig{figure}.png`: 13 networks on 3 data sets.
    - `adagp reproduce fig{figure} --batch 16`: where the designs differ.
    - `adagp reproduce fig{figure} --stalls --bandwidth 4`: with moves, where DRAM is slower than the array.{tiles}

    A table of its own, and hatched bars, show the same array with coarse batches, which are not in the paper.
    """
    return draw


fig17_command, fig18_command, fig19_command = (_speed_up_command(figure) for figure in (17, 18, 19))


@command
@refusals()
def fig21_command(
    batch: machines.Batch = DEFAULTS.batch,
    epochs: machines.Epochs = DEFAULTS.epochs,
    policy: machines.PolicyName = DEFAULTS.policy,
    picture: options.Picture = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Figure 21 of the ADA-GP paper: memory energy saved, by network, policy and table of energies.

    Try:

    - `adagp reproduce fig21 --picture fig21.png`: 13 networks on 3 data sets.
    """
    del debug
    check_pictures(picture)
    setting = Setting(batch, epochs, machine_with({"policy": policy}))
    found = paper.grid(setting, progress_line)
    eyeriss = COST_TABLES["eyeriss"]

    def saved_percent(simulation: Simulation, design: Design) -> float:
        return 100 * simulation.energy_saved(design, eyeriss)

    bars = paper.plain_grid(found, saved_percent)
    ours = coarse.gains(setting, saved_percent, progress_line)
    if picture is not None:
        from adagp.report.accelerator_plots import bars_picture

        title = f"Figure 21: memory energy saved, policy {policy}, batch {batch}, {epochs} epochs"
        averages = dict.fromkeys(bars, 100 * paper.PAPER_ENERGY_SAVED)
        write_bytes(picture, bars_picture(bars, title, "saved, %", averages, picture_format(picture), ours))
    tables = paper.figure21_tables(found, setting, progress_line)
    title = "Not in the paper: memory energy saved by half-size BP batches instead of GP, %"
    tables.append(coarse.gains_table(title, bars, Design.EFFICIENT, ours, setting, digits=1))
    print_tables(tables, {"saved_percent": bars, "coarse_saved_percent": ours}, as_json)


def _cycles_command(number: int) -> Callable[..., None]:
    model, data = paper.TABLE_NETWORKS[number]

    @command
    @options.spread
    @refusals()
    def show(*, training: TrainingOptions, as_json: options.Json = False, debug: options.Debug = False) -> None:
        del debug
        setting = training.setting()
        simulation = paper.simulated(model, data, setting)
        batches = setting.epochs * -(-DATA_SHAPES[data].samples // setting.batch)
        print_tables([paper.cycles_table(number, simulation, setting, batches)], {"batches": batches}, as_json)

    show.__doc__ = f"""Table {number} of the ADA-GP paper: the cycles of {model} on {data}.

    Try:

    - `adagp reproduce table{number}-cycles --batch 8`: a small batch, in which the predictor weighs more.
    """
    return show


table2_command, table3_command = (_cycles_command(number) for number in (2, 3))


def _iso_command(which: str) -> Callable[..., None]:
    @command
    @refusals()
    def show(
        batch: machines.Batch = DEFAULTS.batch,
        epochs: machines.Epochs = DEFAULTS.epochs,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        print_tables([paper.iso_table(which, Setting(batch, epochs), progress_line)], {}, as_json)

    show.__doc__ = f"""Section 6.6.1 of the ADA-GP paper: MAX against a larger baseline of equal {which}."""
    return show


iso_power_command, iso_area_command = (_iso_command(which) for which in ("power", "area"))
