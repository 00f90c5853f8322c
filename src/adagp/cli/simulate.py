"""`adagp simulate`: what a layer, a network or a sweep costs on a model of the accelerator."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.accelerator import (
    CNNS,
    DATA_SHAPES,
    DATAFLOWS,
    CostTable,
    Design,
    Machine,
    Run,
    Work,
    cost_table,
    layer_cost,
    network,
    paper_schedule,
    simulate,
)
from adagp.accelerator.search import Found, search
from adagp.accelerator.sweep import PARAMETERS, Setting, sweep
from adagp.accelerator.text import parse_layer, parse_sizes
from adagp.cli import machine_options as machines
from adagp.cli import options
from adagp.cli.common import InputError, check_folders, check_pictures, command, print_json, print_table, progress_line
from adagp.cli.machine_options import DEFAULTS
from adagp.report import Table
from adagp.report.accelerator_tables import (
    assumptions,
    design_table,
    energy_note,
    layer_table,
    records_csv,
    search_table,
    sweep_table,
)
from adagp.schedules import Phase

EPILOG = f"""Keys of a layer:

- `c_in`, `c_out`: input and output channels; for a linear layer, features.
- `out`: height and width of the output, such as `32x32`. Default: 1x1, as for a linear layer.
- `kernel`: height and width, such as `3` or `1x7`. Default: 1.
- `stride`: such as `2`. Default: 1.
- `groups`: channels are divided into so many; `c_in` for a depthwise convolution. Default: 1.
- `in`: height and width of the input. Default: `out` times `stride`.

{machines.MACHINE_HELP}
"""
MODULE_SAMPLES = 50_000


@command
def simulate_command(
    model: Annotated[str | None, typer.Option(help="A network of `adagp models`.")] = None,
    data_name: Annotated[
        str | None, typer.Option("--data", help=f"What it is trained on: {', '.join(DATA_SHAPES)}. Default: cifar10.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(metavar="PACKAGE.FILE:FACTORY", help="A network of yours: a function that builds it.")
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="CxHxW", help="Of one sample, for --module. Default: 3x32x32.")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE,...", help="One layer, such as c_in=64,c_out=64,out=32x32,kernel=3."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help=f"Samples in a batch. Default: {DEFAULTS.batch}; 1 for --layer.")
    ] = None,
    epochs: machines.Epochs = DEFAULTS.epochs,
    array: machines.ArrayShape = DEFAULTS.array,
    dataflow: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(DATAFLOWS)}. Default: ws; --search weighs all.")
    ] = None,
    buffer_words: machines.BufferWords = None,
    register_words: machines.RegisterWords = None,
    second_array: machines.SecondArray = DEFAULTS.second_array,
    grid: machines.Grid = DEFAULTS.grid,
    channels: machines.Channels = DEFAULTS.channels,
    policy: machines.PolicyName = DEFAULTS.policy,
    energy: machines.EnergyName = DEFAULTS.energy,
    bandwidth: machines.Bandwidth = DEFAULTS.bandwidth,
    stalls: machines.Stalls = False,
    vector_lanes: machines.VectorLanes = None,
    search_for: Annotated[
        bool, typer.Option("--search", help="Find the best array shape and dataflow with at most --pes PEs.")
    ] = False,
    pes: Annotated[int | None, typer.Option(help="For --search. Default: as many as --array has.")] = None,
    sweep_over: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="NAME=A,B,C", help=f"Vary {', '.join(PARAMETERS)}; may be repeated."),
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Also write the table to this file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw it, .png or .svg: layers as in figure 16, or the sweep.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Also draw one batch of each kind, as figures 7 to 9, .png or .svg.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Tell the cycles, speed-up and memory energy of training on a 180-PE accelerator, plain and with ADA-GP.

    By formulas, at once: of a network layer by layer and in total, of one layer, over a sweep, or on the best array.
    Without stalls on memory unless asked for.

    Try:

    - `adagp simulate --model vgg13 --data cifar10`: plain training and ADA-GP's three designs.
    - `adagp simulate --model resnet50 --data imagenet --batch 32 --dataflow rs --json`: for programs.
    - `adagp simulate --model vgg13 --sweep batch=16,64,256 --sweep grid=2,4,8 --picture sweep.png`: what moves it.
    - `adagp simulate --model mobilenet_v2 --search --pes 256`: the best array, and what ADA-GP gives there.
    - `adagp simulate --module mypackage.nets:build --input 3x64x64`: a network of yours.
    - `adagp simulate --layer c_in=64,c_out=64,out=32x32,kernel=3 --batch 128 --dataflow rs`: one layer.
    """
    del debug
    check_folders(csv_file)
    check_pictures(picture, timeline)
    try:
        machine = machines.machine_from(
            array,
            dataflow or DEFAULTS.dataflow,
            buffer_words,
            register_words,
            second_array,
            grid,
            channels,
            policy,
            bandwidth,
            stalls,
            vector_lanes,
        )
        table = cost_table(energy)
        if layer is not None:
            _refuse_beside_layer(
                model=model, data=data_name, module=module, search=search_for, sweep=sweep_over, picture=picture
            )
            _refuse_idle_memories(machine.dataflow, buffer_words, register_words)
            _layer(layer, 1 if batch is None else batch, machine).show(as_json, csv_file)
            return
        network_of, name, samples = _network(model, data_name, module, input_shape)
        setting = Setting(DEFAULTS.batch if batch is None else batch, epochs, machine)
        works = network_of(setting.batch)
        if sweep_over:
            shown = _sweep(network_of, name, setting, sweep_over, table, picture)
        elif search_for:
            wanted = [dataflow] if dataflow else list(DATAFLOWS)
            shown = _search(works, name, setting, machine.array.pes if pes is None else pes, wanted)
        else:
            shown = _designs(works, name, setting, samples, table, picture, timeline)
    except ValueError as error:
        raise InputError(str(error)) from error
    shown.show(as_json, csv_file)


@dataclass(frozen=True)
class _Shown:
    """What a command found: for people, for programs, and as records of a CSV file."""

    tables: list[Table]
    facts: dict[str, Any]
    records: list[dict[str, Any]]

    def show(self, as_json: bool, csv_file: Path | None) -> None:
        if csv_file is not None:
            from adagp.training.files import write_bytes

            write_bytes(csv_file, records_csv(self.records).encode())
        if as_json:
            print_json(self.facts)
            return
        for table in self.tables:
            print_table(table)


def _network(
    model: str | None, data_name: str | None, module: str | None, input_shape: str | None
) -> tuple[Callable[[int], list[Work]], str, int]:
    """The work of a batch of any size, what to call it, and the samples of an epoch."""
    if module is not None:
        if model or data_name:
            raise InputError("module: stands for model and data; leave these out")
        from adagp.accelerator.user_module import module_network

        shape = parse_sizes("input", input_shape or "3x32x32")
        return lambda batch: module_network(module, shape, batch), module, MODULE_SAMPLES
    if input_shape is not None:
        raise InputError("input: belongs to --module; the zoo's networks have their own")
    if model is None:
        raise InputError(f"model: is missing; give --model (such as {', '.join(CNNS[:6])}), --module or --layer")
    data = data_name or "cifar10"
    return (
        lambda batch: network(model, data, batch),
        f"{model} on {data}",
        DATA_SHAPES[data].samples if data in DATA_SHAPES else 0,
    )


def _designs(
    works: list[Work],
    name: str,
    setting: Setting,
    samples: int,
    table: CostTable,
    picture: Path | None,
    timeline: Path | None,
) -> _Shown:
    machine, epochs = setting.machine, setting.epochs
    runs = simulate(works, *paper_schedule(epochs), machine)
    batches = epochs * -(-samples // setting.batch)
    notes = (*assumptions(machine, setting.batch, epochs), energy_note(machine, table))
    title = f"{name}, {epochs} epochs of {samples:,} samples"
    tables = [layer_table(runs, table), design_table(title, runs, table, batches, notes)]
    facts: dict[str, Any] = {
        "network": name,
        "batch": setting.batch,
        "epochs": epochs,
        "batches": batches,
        "machine": asdict(machine),
        "energy_unit": table.unit,
        "designs": {design.value: _facts(run, runs[Design.BASELINE], table, batches) for design, run in runs.items()},
    }
    if picture is not None or timeline is not None:
        _draw_designs(runs, title, picture, timeline)
    records = [
        {"network": name, "design": design, **layer}
        for design, found in facts["designs"].items()
        for layer in found["layers"]
    ]
    return _Shown(tables, facts, records)


def _facts(run: Run, baseline: Run, table: CostTable, batches: int) -> dict[str, Any]:
    scale = batches / run.count
    cycles, energies = run.layer_cycles(), run.layer_energy(table)
    return {
        "cycles": round(run.cycles * scale),
        "speed_up": baseline.cycles / run.cycles,
        "dram_words": round(run.dram_words * scale),
        "buffer_words": round(run.buffer_words * scale),
        "energy": run.energy(table) * scale,
        "energy_saved": 1 - run.energy(table) / baseline.energy(table),
        "phases": [
            {
                "phase": batch.phase.value,
                "share": batch.count / run.count,
                "batch_cycles": batch.cycles,
                "batch_dram_words": batch.dram_words,
                "batch_buffer_words": batch.buffer_words,
            }
            for batch in run.batches
        ],
        "layers": [
            {"layer": name, "cycles": round(cycles[name] * scale), "energy": energies.get(name, 0.0) * scale}
            for name in cycles
        ],
    }


def _draw_designs(runs: dict[Design, Run], title: str, picture: Path | None, timeline: Path | None) -> None:
    from adagp.report.accelerator_figures import NAMES, layers_picture, picture_format, timeline_picture
    from adagp.training.files import write_bytes

    if picture is not None:
        drawn = layers_picture(runs, Design.EFFICIENT, title, picture_format(picture))
        write_bytes(picture, drawn)
    if timeline is not None:
        kinds = [
            (Design.BASELINE, Phase.BP),
            (Design.EFFICIENT, Phase.BP),
            (Design.EFFICIENT, Phase.GP),
            (Design.MAX, Phase.GP),
        ]
        panels = {
            f"{NAMES[design]}, {phase.value} batch": found.steps
            for design, phase in kinds
            for found in runs[design].batches
            if found.phase is phase
        }
        write_bytes(timeline, timeline_picture(panels, title, picture_format(timeline)))


def _search(works: list[Work], name: str, setting: Setting, pes: int, dataflows: list[str]) -> _Shown:
    machine = setting.machine
    schedule = paper_schedule(setting.epochs)
    found = search(works, pes, machine, dataflows, progress_line)
    rows = [
        (best, simulate(works, *schedule, replace(machine, array=best.array, dataflow=best.dataflow))) for best in found
    ]
    given = Found("ws", machine.array, 0, 0)
    rows.append((given, simulate(works, *schedule, replace(machine, dataflow="ws"))))
    notes = ("the last row: the array that was given, under ws", *assumptions(machine, setting.batch, setting.epochs))
    table = search_table(f"{name}: the best arrays of at most {pes} PEs", rows, notes)
    facts: dict[str, Any] = {
        "network": name,
        "pes": pes,
        "batch": setting.batch,
        "epochs": setting.epochs,
        "found": [
            {
                "dataflow": best.dataflow,
                "rows": best.array.rows,
                "columns": best.array.columns,
                "tried": best.tried,
                "designs": _speed_ups(runs),
            }
            for best, runs in rows
        ],
    }
    records = [
        {**{key: value for key, value in best.items() if key != "designs"}, "design": design, **figures}
        for best in facts["found"]
        for design, figures in best["designs"].items()
    ]
    return _Shown([table], facts, records)


def _speed_ups(runs: dict[Design, Run]) -> dict[str, dict[str, float]]:
    baseline = runs[Design.BASELINE]
    return {
        design.value: {"batch_cycles": run.cycles / run.count, "speed_up": baseline.cycles / run.cycles}
        for design, run in runs.items()
    }


def _sweep(
    network_of: Callable[[int], list[Work]],
    name: str,
    setting: Setting,
    sweep_over: list[str],
    table: CostTable,
    picture: Path | None,
) -> _Shown:
    ranges: dict[str, list[str]] = {}
    for text in sweep_over:
        parameter, equals, values = text.partition("=")
        if not equals or parameter in ranges:
            raise InputError(f"sweep: '{text}' is not NAME=A,B,C, or its name is there twice; give --sweep batch=16,64")
        ranges[parameter] = values.split(",")
    points = sweep(network_of, setting, ranges, table)
    machine = setting.machine
    fixed = (
        "where not swept over: " + assumptions(machine, setting.batch, setting.epochs)[0],
        *assumptions(machine)[1:],
        energy_note(machine, table),
    )
    title = f"{name} over {', '.join(ranges)}"
    if picture is not None:
        from adagp.report.accelerator_figures import picture_format, sweep_picture
        from adagp.training.files import write_bytes

        write_bytes(picture, sweep_picture(points, title, picture_format(picture)))
    facts = {
        "network": name,
        "points": [
            {
                **point.values,
                "designs": {
                    design.value: {
                        "batch_cycles": point.cycles[design],
                        "speed_up": point.speed_ups[design],
                        "energy_saved": point.energy_saved[design],
                    }
                    for design in Design
                },
            }
            for point in points
        ],
    }
    records = [
        {
            **point.values,
            "design": design.value,
            "batch_cycles": point.cycles[design],
            "speed_up": point.speed_ups[design],
            "energy_saved": point.energy_saved[design],
        }
        for point in points
        for design in Design
    ]
    return _Shown([sweep_table(title, points, fixed)], facts, records)


def _refuse_beside_layer(**given: object) -> None:
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: says nothing of a single layer; leave it out, or leave --layer out")


def _refuse_idle_memories(dataflow: str, buffer_words: int | None, register_words: int | None) -> None:
    memories = {"buffer_words": buffer_words, "register_words": register_words}
    given = [name for name, words in memories.items() if words is not None]
    if given and dataflow != "rs":
        raise InputError(
            f"{', '.join(given)}: would change nothing under {dataflow} for one layer; leave it out, or choose rs"
        )


def _layer(text: str, batch: int, machine: Machine) -> _Shown:
    shape = parse_layer(text, batch)
    array, dataflow = machine.array, machine.dataflow
    costs = layer_cost(shape, array, dataflow)
    rows = [
        (
            which.value.replace("_", " "),
            f"{cost.cycles:,}",
            f"{cost.macs:,}",
            f"{100 * cost.utilisation:.1f}",
            f"{cost.dram_words:,}",
            f"{cost.buffer_words:,}",
        )
        for which, cost in costs.items()
    ]
    columns = ("pass", "cycles", "MACs", "utilisation %", "DRAM words", "buffer words")
    words = (
        "DRAM words: of the mapping of least energy, padding included"
        if dataflow == "rs"
        else "DRAM words: each tensor once, without padding"
    )
    title = f"{text}, batch {batch}, {array.rows}x{array.columns} PEs, {dataflow}"
    passes = {which.value: asdict(cost) for which, cost in costs.items()}
    return _Shown(
        [Table(title, columns, rows, ("cycles: without stalls on memory", words))],
        {"layer": asdict(shape), "array": asdict(array), "dataflow": dataflow, **passes},
        [{"pass": which, **cost} for which, cost in passes.items()],
    )
