"""`adagp simulate`: what a network, a layer, a sweep or the best array costs on a model of the accelerator."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from adagp.accelerator import (
    CNNS,
    DATA_SHAPES,
    DATAFLOWS,
    Design,
    Machine,
    Setting,
    Work,
    cost_table,
    layer_cost,
    network,
)
from adagp.accelerator.search import search
from adagp.accelerator.setting import MACHINE_KEYS, SWEPT
from adagp.accelerator.sweep import parse_ranges, sweep
from adagp.accelerator.text import parse_layer, parse_sizes
from adagp.cli import machine_options as machines
from adagp.cli import options
from adagp.cli.common import InputError, check_folders, check_pictures, command, print_json, print_table, progress_line
from adagp.cli.machine_options import DEFAULTS, ArrayOptions, MachineOptions, given_options, spread
from adagp.report import Table
from adagp.report import accelerator_records as records
from adagp.report.accelerator_tables import (
    assumptions,
    design_table,
    energy_note,
    layer_table,
    pass_table,
    search_table,
    sweep_table,
)

LAYER_HELP = """Keys of a layer:

- `c_in`, `c_out`: input and output channels; for a linear layer, features.
- `out`: height and width of the output, such as `32x32`. Default: 1x1, as for a linear layer.
- `kernel`: height and width, such as `3` or `1x7`. Default: 1.
- `stride`: such as `2`. Default: 1.
- `groups`: the number of groups of channels; `c_in` for a depthwise convolution. Default: 1.
- `in`: height and width of the input. Default: `out` times `stride`.
"""
MACHINE_FILE_HELP = (
    'A file for `--machine` has lines such as `array = "12x15"`. '
    f"Its keys: {', '.join(f'`{key}`' for key in MACHINE_KEYS)}.\n\n"
)
MODULE_SAMPLES = 50_000


class _Modes(TyperGroup):
    """Chooses the mode by an option where no mode is named, as `adagp simulate --layer ...` was written at first."""

    # Typer carries click within itself or beside it, as its version goes: so its types have no name here.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*_unnamed_mode(args), *args])


def _unnamed_mode(args: Sequence[str]) -> list[str]:
    if args and (args[0] in ("-h", "--help") or not args[0].startswith("-")):
        return []
    given = {arg.partition("=")[0] for arg in args}
    return [next((mode for mode in ("layer", "sweep", "search") if f"--{mode}" in given), "network")]


class _Mode(TyperCommand):
    """Refuses the options of the other modes in one line that says whose they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            modes = {name: _options(mode) for name, mode in ctx.parent.command.commands.items()}
            owners = [name for name, known in modes.items() if option in known]
            if not owners or self.name in owners:
                raise
            what = "a single layer" if self.name == "layer" else f"'adagp simulate {self.name}'"
            remedy = f"leave it out, or use 'adagp simulate {owners[0]}'"
            print(f"adagp: error: {option}: has no effect on {what}; {remedy}", file=sys.stderr)
            raise typer.Exit(2) from None


def _options(mode: Any) -> set[str]:
    return {option for parameter in mode.params for option in (*parameter.opts, *parameter.secondary_opts)}


simulate_app = typer.Typer(
    cls=_Modes,
    rich_markup_mode="markdown",
    help="""Tell the cycles, speed-up and memory energy of training on a 180-PE accelerator, plain and with ADA-GP.

Computed by formulas in a second. There are no stalls on memory unless asked for.

Try:

- `adagp simulate network --model vgg13 --data cifar10`: plain training and ADA-GP's three designs.
- `adagp simulate layer c_in=64,c_out=64,out=32x32,kernel=3`: the three passes of one layer.
- `adagp simulate sweep batch=16,64,256 --model vgg13`: what moves the figures.
- `adagp simulate search --model mobilenet_v2 --pes 256`: the best array, and what ADA-GP gives there.

Without one of these words, `--layer`, `--sweep` or `--search` chooses it; otherwise it is `network`.
""",
    epilog=machines.MACHINE_HELP,
)


class Network(NamedTuple):
    """A network to simulate: its work for a batch size, its name, and the samples of an epoch."""

    works: Callable[[int], list[Work]]
    name: str
    samples: int


@dataclass(frozen=True)
class NetworkOptions:
    """A network of the zoo or of the user, and its training."""

    model: Annotated[str | None, typer.Option(help="A network of `adagp models`.")] = None
    data_name: Annotated[
        str | None, typer.Option("--data", help=f"What it is trained on: {', '.join(DATA_SHAPES)}. Default: cifar10.")
    ] = None
    module: Annotated[
        str | None, typer.Option(metavar="PACKAGE.FILE:FACTORY", help="A network of yours: a function that builds it.")
    ] = None
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="Shape of a sample, for --module. Default: 3x32x32.")
    ] = None
    batch: machines.Batch = DEFAULTS.batch
    epochs: machines.Epochs = DEFAULTS.epochs

    def network(self) -> Network:
        """The network that is asked for; its work is computed once for each batch size."""
        if self.module is not None:
            return self._of_the_user(self.module)
        if self.input_shape is not None:
            raise InputError("input: belongs to --module; the zoo's networks have their own")
        if self.model is None:
            raise InputError(f"model: is missing; give --model (such as {', '.join(CNNS[:6])}), --module or --layer")
        model, data = self.model, self.data_name or "cifar10"
        samples = DATA_SHAPES[data].samples if data in DATA_SHAPES else 0
        return Network(cache(lambda batch: network(model, data, batch)), f"{model} on {data}", samples)

    def _of_the_user(self, module: str) -> Network:
        if self.model or self.data_name:
            raise InputError("module: stands for model and data; leave these out")
        from adagp.accelerator.user_module import module_network

        shape = parse_sizes("input", self.input_shape or "3x32x32")
        return Network(cache(lambda batch: module_network(module, shape, batch)), module, MODULE_SAMPLES)

    def setting(self, machine: Machine) -> Setting:
        """Its training on a machine."""
        return Setting(self.batch, self.epochs, machine)


@dataclass(frozen=True)
class OutputOptions:
    """How results are shown."""

    csv_file: Annotated[Path | None, typer.Option("--csv", help="Also write the figures to this file.")] = None
    as_json: options.Json = False
    debug: options.Debug = False

    def show(self, tables: Sequence[Table], facts: dict[str, Any], rows: Sequence[records.Record]) -> None:
        """Print tables for people or facts for programs; write rows to the CSV file."""
        if self.csv_file is not None:
            _write(self.csv_file, records.records_csv(rows).encode())
        if self.as_json:
            print_json(facts)
            return
        for table in tables:
            print_table(table)


@contextmanager
def _refusals() -> Iterator[None]:
    """What the model refuses is a wrong option."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


@simulate_app.command("network", cls=_Mode, epilog=MACHINE_FILE_HELP + machines.MACHINE_HELP)
@command
@spread
@_refusals()
def network_command(
    context: typer.Context,
    network_options: NetworkOptions,
    machine_options: MachineOptions,
    output: OutputOptions,
    energy: machines.EnergyName = DEFAULTS.energy,
    picture: Annotated[Path | None, typer.Option(help="Also draw the layers as in figure 16, .png or .svg.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Also draw one batch of each kind, as figures 7 to 9, .png or .svg.")
    ] = None,
) -> None:
    """Cost of training a network, layer by layer and in total, plain and with ADA-GP's three designs.

    Try:

    - `adagp simulate network --model vgg13 --data cifar10`: on the paper's 180 PEs.
    - `adagp simulate network --model resnet50 --data imagenet --batch 32 --dataflow rs --json`: for programs.
    - `adagp simulate network --model vgg13 --machine mine.toml`: on a machine of yours.
    - `adagp simulate network --module mypackage.nets:build --input 3x64x64`: a network of yours.
    """
    check_folders(output.csv_file)
    check_pictures(picture, timeline)
    given = given_options(context)
    machine, table = machine_options.machine(given), cost_table(energy)
    _refuse_idle_registers(given, [machine.dataflow])
    works, name, samples = network_options.network()
    setting = network_options.setting(machine)
    simulation = setting.simulate(works)
    batches = setting.epochs * -(-samples // setting.batch)
    title = f"{name}, {setting.epochs} epochs of {samples:,} samples"
    notes = (*assumptions(machine, setting.batch, setting.epochs), energy_note(machine, table))
    if picture is not None or timeline is not None:
        from adagp.report.accelerator_figures import layers_picture, picture_format, timeline_picture

        if picture is not None:
            _write(picture, layers_picture(simulation, Design.EFFICIENT, title, picture_format(picture)))
        if timeline is not None:
            _write(timeline, timeline_picture(simulation, title, picture_format(timeline)))
    designs = records.design_facts(simulation, table, batches)
    facts = {
        "network": name,
        "batch": setting.batch,
        "epochs": setting.epochs,
        "batches": batches,
        "machine": asdict(machine),
        "energy_unit": table.unit,
        "designs": designs,
    }
    tables = [layer_table(simulation, table), design_table(title, simulation, table, batches, notes)]
    output.show(tables, facts, records.layer_records(name, designs))


@simulate_app.command("layer", cls=_Mode, epilog=LAYER_HELP + "\n" + MACHINE_FILE_HELP)
@command
@spread
@_refusals()
def layer_command(
    context: typer.Context,
    machine_options: ArrayOptions,
    output: OutputOptions,
    keys: Annotated[
        str | None, typer.Argument(metavar="KEY=VALUE,...", help="The layer; its keys are below.", show_default=False)
    ] = None,
    layer: Annotated[str | None, typer.Option(hidden=True)] = None,
    batch: machines.Batch = 1,
) -> None:
    """Cost of the three passes of one layer: its forward and its two gradients.

    Try:

    - `adagp simulate layer c_in=64,c_out=64,out=32x32,kernel=3`: a convolution.
    - `adagp simulate layer c_in=512,c_out=10 --batch 128 --dataflow rs --json`: a linear layer, for programs.
    """
    check_folders(output.csv_file)
    given = given_options(context)
    machine = machine_options.machine(given)
    texts = [text for text in (keys, layer) if text is not None]
    if len(texts) != 1:
        what = "is missing" if not texts else "is given twice"
        raise InputError(f"layer: {what}; give for example c_in=64,c_out=64,out=32x32,kernel=3")
    array, dataflow = machine.array, machine.dataflow
    _refuse_idle_registers(given, [dataflow], ("buffer_words", "register_words"))
    shape = parse_layer(texts[0], batch)
    costs = layer_cost(shape, array, dataflow)
    passes = records.pass_facts(costs)
    output.show(
        [pass_table(f"{texts[0]}, batch {batch}, {array} PEs, {dataflow}", costs, dataflow)],
        {"layer": asdict(shape), "array": asdict(array), "dataflow": dataflow, **passes},
        [{"pass": which, **cost} for which, cost in passes.items()],
    )


@simulate_app.command("sweep", cls=_Mode, epilog=MACHINE_FILE_HELP + machines.MACHINE_HELP)
@command
@spread
@_refusals()
def sweep_command(
    context: typer.Context,
    network_options: NetworkOptions,
    machine_options: MachineOptions,
    output: OutputOptions,
    ranges: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=A,B,C...", help=f"Vary {', '.join(SWEPT)}.", show_default=False),
    ] = None,
    sweep_over: Annotated[list[str] | None, typer.Option("--sweep", hidden=True)] = None,
    energy: machines.EnergyName = DEFAULTS.energy,
    picture: Annotated[Path | None, typer.Option(help="Also draw the speed-ups, .png or .svg.")] = None,
) -> None:
    """Speed-ups of a network while one assumption after the other changes.

    Try:

    - `adagp simulate sweep batch=16,64,256 grid=2,4,8 --model vgg13 --picture sweep.png`: every combination.
    - `adagp simulate sweep dataflow=ws,os,is,rs --model vgg13 --csv sweep.csv`: for a spreadsheet.
    """
    check_folders(output.csv_file)
    check_pictures(picture)
    given = given_options(context)
    machine, table = machine_options.machine(given), cost_table(energy)
    works, name, _ = network_options.network()
    setting = network_options.setting(machine)
    swept = parse_ranges([*(ranges or ()), *(sweep_over or ())])
    if not swept:
        raise InputError("sweep: nothing is varied; give for example batch=16,64")
    for parameter in swept:
        if parameter.replace("-", "_") in given:
            raise InputError(f"{parameter}: is swept over and given as --{parameter}; leave one out")
    _refuse_idle_registers(given, swept.get("dataflow", [machine.dataflow]))
    points = sweep(works, setting, swept, table)
    title = f"{name} over {', '.join(swept)}"
    notes = (
        "where not swept over: " + assumptions(machine, setting.batch, setting.epochs)[0],
        *assumptions(machine)[1:],
        energy_note(machine, table),
    )
    if picture is not None:
        from adagp.report.accelerator_figures import picture_format, sweep_picture

        _write(picture, sweep_picture(points, title, picture_format(picture)))
    facts = [records.point_facts(point) for point in points]
    output.show([sweep_table(title, points, notes)], {"network": name, "points": facts}, records.design_records(facts))


@simulate_app.command("search", cls=_Mode, epilog=MACHINE_FILE_HELP + machines.MACHINE_HELP)
@command
@spread
@_refusals()
def search_command(
    context: typer.Context,
    network_options: NetworkOptions,
    machine_options: MachineOptions,
    output: OutputOptions,
    pes: Annotated[int | None, typer.Option(help="The most PEs. Default: as many as the machine's array has.")] = None,
    search_for: Annotated[bool, typer.Option("--search", hidden=True)] = False,
) -> None:
    """The best array for a network, of all dataflows or of `--dataflow` alone, and what ADA-GP gives there.

    Try:

    - `adagp simulate search --model mobilenet_v2 --pes 256`: every dataflow.
    - `adagp simulate search --model vgg13 --dataflow os`: one dataflow, at most 180 PEs.
    """
    del search_for
    check_folders(output.csv_file)
    given = given_options(context)
    machine = machine_options.machine(given)
    dataflows = [machine.dataflow] if "dataflow" in given else list(DATAFLOWS)
    _refuse_idle_registers(given, [*dataflows, machine.dataflow])
    works, name, _ = network_options.network()
    setting = network_options.setting(machine)
    most = machine.array.pes if pes is None else pes
    found = search(works(setting.batch), most, machine, dataflows, progress_line)
    best = [setting.on(array=each.array, dataflow=each.dataflow) for each in found]
    rows = [(each.machine, each.simulate(works)) for each in (*best, setting)]
    facts = [records.machine_facts(*row, each) for row, each in zip(rows, found, strict=False)]
    as_given = records.machine_facts(*rows[-1])
    notes = assumptions(machine, setting.batch, setting.epochs)
    output.show(
        [search_table(f"{name}: the best arrays of at most {most} PEs", found, rows, notes)],
        {
            "network": name,
            "pes": most,
            "batch": setting.batch,
            "epochs": setting.epochs,
            "found": facts,
            "given": as_given,
        },
        records.design_records([*facts, as_given]),
    )


def _refuse_idle_registers(
    given: Collection[str], dataflows: Sequence[str], memories: Sequence[str] = ("register_words",)
) -> None:
    """Only the row-stationary mapping looks at registers, and for a single layer at the buffer."""
    idle = [name for name in memories if name in given]
    if idle and "rs" not in dataflows:
        raise InputError(
            f"{', '.join(idle)}: would change nothing under {', '.join(dict.fromkeys(dataflows))}; leave it out, "
            "or choose rs"
        )


def _write(path: Path, content: bytes) -> None:
    from adagp.training.files import write_bytes

    write_bytes(path, content)
