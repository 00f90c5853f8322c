"""`adagp hardware`: check, synthesise and export the accelerator in RTL."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagp.accelerator import Design
from adagp.accelerator.rtl.tools import YOSYS
from adagp.cli import machine_options, options
from adagp.cli.common import check_folders, check_pictures, command, print_files, print_json, print_table, refusals
from adagp.cli.display import Display
from adagp.cli.groups import MARKUP, QuickGroup
from adagp.cli.hardware_costs import (
    DesignName,
    coverage_command,
    parse_design,
    parse_pes,
    place_command,
    power_command,
    prove_command,
    timing_command,
)
from adagp.cli.hardware_speedup import speedup_command
from adagp.cli.hardware_waves import waves_command
from adagp.errors import AdagpError
from adagp.files import write_bytes
from adagp.report.hardware import (
    batches_table,
    checks_table,
    designs_png,
    modules_picture,
    modules_table,
    run_table,
    synthesis_table,
    training_table,
)
from adagp.report.plot import picture_format
from adagp.schedules import Phase

if TYPE_CHECKING:
    from adagp.accelerator import LayerOp

hardware_app = typer.Typer(
    cls=QuickGroup,
    rich_markup_mode=MARKUP,
    no_args_is_help=True,
    help="Check, synthesise and export the accelerator in RTL.",
)


@hardware_app.command("check")
@command
def check_command(
    array: Annotated[str, typer.Option(metavar="ROWSxCOLUMNS", help="PEs; small arrays are quick to clock.")] = "4x3",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Run a convolution, a linear layer and a GP step on the RTL, clock by clock, and compare them with torch.

    Each must equal an integer model in every bit, lie within the quantisation error of torch in 64-bit floating point,
    and take the cycles of the formulas, moves included. The exit code is 1 if one does not.

    Try:

    - `adagp hardware check`: seven computations, a few seconds.
    - `adagp hardware check --array 12x15 --seed 1`: on the array of the paper, about a minute.
    """
    del debug
    with refusals():
        from adagp.accelerator.rtl.checks import run_checks

        found = list(run_checks(*parse_pes("array", array), seed))
    if as_json:
        print_json(
            {"array": array, "seed": seed, "checks": [{**asdict(check), "passed": check.passed} for check in found]}
        )
    else:
        print_table(checks_table(f"{array} PEs in simulation", found))
    if not all(check.passed for check in found):
        failed = ", ".join(check.name for check in found if not check.passed)
        raise AdagpError(f"the RTL does not compute what it should: {failed}")


@hardware_app.command("run")
@command
def run_command(
    model: Annotated[str, typer.Option(help="A network of the zoo.")] = "vgg13",
    layer: Annotated[
        str, typer.Option(help="A layer of it, as `adagp simulate network --model MODEL` lists them.")
    ] = "features.3",
    batch: machine_options.Batch = 4,
    design: DesignName = "efficient",
    phase: Annotated[
        str, typer.Option(help="bp: forward, backward, learning. gp: forward, prediction, update.")
    ] = "gp",
    data: Annotated[str, typer.Option(help="The data set, which sets the sizes of the images.")] = "cifar10",
    array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
    second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
    bandwidth: Annotated[int, typer.Option(help="DRAM words a cycle, in each direction.")] = 16,
    latency: Annotated[int, typer.Option(help="Cycles from a DRAM request to its first word.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    vcd: Annotated[
        Path | None, typer.Option(help="File for waveforms of all signals; Amaranth's simulator writes it.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Run one layer's part of a batch on the RTL of a design, and compare it with an integer model bit by bit.

    The layer is cut into tiles that fit the buffers. Verilator clocks it if it is installed, a million cycles in some
    ten seconds; otherwise Amaranth's simulator does, which is some thousand times slower. The exit code is 1 if a bit
    differs, or the cycles are not those of the formulas.

    Try:

    - `adagp hardware run --model vgg13 --layer features.3 --batch 4 --design efficient --phase gp`
    - `adagp hardware run --model mobilenet_v2 --layer features.4.body.3 --batch 1 --phase bp`: depthwise.
    - `adagp hardware run --layer head.2 --batch 1 --array 4x4 --vcd head.vcd`: waveforms, for GTKWave and `waves`.
    """
    del debug
    check_folders(vcd)
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.networks import network
        from adagp.accelerator.rtl.dram import Timing
        from adagp.accelerator.rtl.layer_run import layer_program, run_layer
        from adagp.accelerator.rtl.simulators import choose_simulator
        from adagp.accelerator.rtl.top import geometries

        chosen, which, timing = parse_design(design), _phase(phase), Timing(bandwidth, latency)
        cores = geometries(chosen, parse_pes("array", array), parse_pes("second_array", second_array))
        op = find_layer(network(model, data, batch), layer, model)
        program = layer_program(op, chosen, which, cores, timing, seed)
        simulator = choose_simulator(program.model_cycles, cores, display.on_message, waveforms=vcd is not None)
        text = f"clocking {layer} on {simulator.name}"
        display.on_message(f"{text}: {program.model_cycles:,} cycles by the formulas")
        began = time.monotonic()
        found = run_layer(
            op, program, simulator, lambda cycle: display.on_progress(cycle, program.model_cycles, text), vcd
        )
    setting = {"model": model, "data": data, "layer": layer, "batch": batch, "design": design, "phase": phase}
    dram = {"array": array, "second_array": second_array, "bandwidth_words": bandwidth, "latency_cycles": latency}
    if as_json:
        print_json({**setting, **dram, "simulator": simulator.name, **asdict(found)})
    else:
        print_table(run_table(setting, dram, simulator.name, time.monotonic() - began, found))
    if not found.bit_exact:
        raise AdagpError(f"the RTL does not compute layer {layer} as the integer model does")
    if found.cycles != found.model_cycles:
        raise AdagpError(f"the RTL takes {found.cycles:,} cycles, and the formulas give {found.model_cycles:,}")


@hardware_app.command("train")
@command
def train_command(
    design: DesignName = "efficient",
    batches: Annotated[int, typer.Option(min=1, help="Batches to train.")] = 20,
    batch: machine_options.Batch = 16,
    warmup: Annotated[int, typer.Option(min=0, help="Batches of plain BP first; then GP and BP take turns.")] = 10,
    data: Annotated[str, typer.Option(help="A data set of colour images of 32x32.")] = "cifar10",
    data_root: options.Root = None,
    bandwidth: Annotated[int, typer.Option(help="DRAM words a cycle, in each direction.")] = 16,
    latency: Annotated[int, typer.Option(help="Cycles from a DRAM request to its first word.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights.")] = 0,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train a small CNN in integers on the RTL of a design, bit by bit in step with an integer model.

    Three convolutions of stride 2 and a classifier, 180 PEs. On the baseline every batch is BP. A BP batch of
    16 images takes half a million cycles, some seconds by Verilator. Without it Amaranth's simulator clocks them, some
    thousand times slower. The exit code is 1 if a bit or a cycle differs.

    Try:

    - `adagp hardware train --design efficient --batches 100`
    - `adagp hardware train --design baseline --batches 2 --json`
    """
    del debug
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.rtl.dram import Timing
        from adagp.accelerator.rtl.simulators import choose_simulator
        from adagp.accelerator.rtl.top import geometries
        from adagp.accelerator.rtl.training import CNN, RtlTraining, initial_network, phases, train
        from adagp.accelerator.rtl.training_data import fixed_images

        chosen, timing = parse_design(design), Timing(bandwidth, latency)
        images, labels = fixed_images(data, data_root, batches * batch)
        cores, order = geometries(chosen), phases(chosen, batches, warmup)
        training = RtlTraining(initial_network(CNN, batch, seed), batch, chosen, cores, timing)
        bench = choose_simulator(sum(map(training.model_cycles, order)), cores, display.on_message)(cores, timing)
        found = []
        for done in train(training, bench, images, labels, batch, order):
            found.append(done)
            display.on_progress(len(found), batches, f"training on the RTL, loss {done.loss:.3f}")
    if as_json:
        plain = [{**asdict(each), "phase": each.phase.value} for each in found]
        print_json({"design": design, "batch": batch, "data": data, "seed": seed, "batches": plain})
    else:
        print_table(training_table(f"{design}, {data}, batch {batch}, seed {seed}", found))
    wrong = [place for place, each in enumerate(found) if not each.bit_exact or each.cycles != each.model_cycles]
    if wrong:
        raise AdagpError(f"batch {wrong[0]}: the RTL does not do what the integer model and the formulas do")


@hardware_app.command("report")
@command
def report_command(as_json: options.Json = False, debug: options.Debug = False) -> None:
    """Clock a BP and a GP batch of a small network on every design, and compare with the models.

    Two convolutions and a linear layer, batch 2, 4x3 PEs; MAX's second array has 3x2. The exit code is 1 if a bit
    differs from the integer model's, or the cycles are not those of the formulas.

    Try:

    - `adagp hardware report`: seven batches, about half a minute.
    """
    del debug
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.rtl.measure import measure

        found = []
        for design in Design:
            for phase in (Phase.BP, Phase.GP):
                if (design, phase) != (Design.BASELINE, Phase.GP):
                    display.on_message(f"clocking a {phase.value} batch on {design.value}")
                    found.append(measure(design, phase))
    if as_json:
        print_json(
            {
                "batches": [
                    {**asdict(batch), "design": batch.design.value, "phase": batch.phase.value} for batch in found
                ]
            }
        )
    else:
        print_table(batches_table(found))
    wrong = [f"{batch.phase.value} on {batch.design.value}" for batch in found if not batch.passed]
    if wrong:
        raise AdagpError(f"not what the integer model and the formulas give: {', '.join(wrong)}")


hardware_app.command("speedup")(speedup_command)
hardware_app.command("waves")(waves_command)


@hardware_app.command("synth")
@command
def synth_command(
    design: DesignName = "baseline",
    target: Annotated[
        str, typer.Option(help="xc7: a Xilinx 7-series FPGA; osu018: open 0.18 um standard cells.")
    ] = "xc7",
    array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
    second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
    picture: options.Picture = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Synthesise a design by yosys and list its resources, in all and by module; nothing is placed or routed.

    Try:

    - `adagp hardware synth --design baseline --target xc7`: LUTs, registers, multipliers, block RAMs.
    - `adagp hardware synth --design max --target osu018`: standard cells and their area.
    - `adagp hardware synth --design efficient --target osu018 --picture area.png`: which modules take it.
    - `adagp hardware synth --design low --array 4x4 --json`: a small one, for programs.
    """
    del debug
    check_pictures(picture)
    with refusals():
        from adagp.accelerator.rtl.synthesis import check_target, module_resources, synthesise
        from adagp.accelerator.rtl.top import Accelerator, geometries

        cores = geometries(parse_design(design), parse_pes("array", array), parse_pes("second_array", second_array))
        check_target(target)
        yosys = YOSYS.version()
        found = synthesise(Accelerator(cores), target)
        modules = module_resources(Accelerator(cores), target)
    resources = {**found, "memory_bits": sum(core.memory_bits for core in cores.values())}
    title = f"{design}, {array} PEs, {target}, yosys {yosys}"
    if picture is not None:
        what = "lut" if target == "xc7" else "area_um2"
        write_bytes(picture, modules_picture(modules, what, title, picture_format(picture)))
    if as_json:
        setting = {"design": design, "target": target, "array": array, "yosys": yosys}
        print_json({**setting, **resources, "modules": modules})
        return
    print_table(synthesis_table(title, target, resources))
    print()
    print_table(modules_table(modules))
    print_files(picture=picture)


@hardware_app.command("export")
@command
def export_command(
    verilog: Annotated[Path, typer.Option(help="Folder for one Verilog file for each design.")],
    array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
    second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Write every design as Verilog: one module for each kind of part, `accelerator` at the top.

    Try:

    - `adagp hardware export --verilog out/`: baseline.v, low.v, efficient.v, max.v.
    - `verilator --lint-only -Wall out/waivers.vlt out/max.v`: the waivers say what of it does not apply, and why.
    """
    del debug
    written = []
    with refusals():
        from adagp.accelerator.rtl.top import Accelerator, geometries
        from adagp.accelerator.rtl.verilog import verilog as converted
        from adagp.accelerator.rtl.verilog import waivers
        from adagp.training.run.folder import make_folder

        sizes = parse_pes("array", array), parse_pes("second_array", second_array)
        designs = {design: geometries(design, *sizes) for design in Design}
        YOSYS.find()
        make_folder(verilog)
        for design, cores in designs.items():
            write_bytes(verilog / f"{design.value}.v", converted(Accelerator(cores)).encode())
            written.append(str(verilog / f"{design.value}.v"))
        write_bytes(verilog / "waivers.vlt", waivers().encode())
        written.append(str(verilog / "waivers.vlt"))
    if as_json:
        print_json({"files": written})
        return
    print("\n".join(written))


@hardware_app.command("draw")
@command
def draw_command(
    out: Annotated[Path, typer.Option(help="The PNG file.")] = Path("designs.png"),
    array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
    second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
    debug: options.Debug = False,
) -> None:
    """Draw the three ADA-GP designs with the sizes they are built with.

    Try:

    - `adagp hardware draw --out designs.png`
    """
    del debug
    check_folders(out)
    with refusals():
        picture = designs_png(parse_pes("array", array), parse_pes("second_array", second_array))
    write_bytes(out, picture)
    print_files(picture=out)


hardware_app.command("timing")(timing_command)
hardware_app.command("place")(place_command)
hardware_app.command("power")(power_command)
hardware_app.command("prove")(prove_command)
hardware_app.command("coverage")(coverage_command)


def find_layer(ops: "Sequence[LayerOp]", name: str, model: str) -> "LayerOp":
    """The layer of that name.

    Raises:
        ValueError: If the model has none.
    """
    for op in ops:
        if op.name == name:
            return op
    names = ", ".join(op.name for op in ops[:12]) + (", ..." if len(ops) > 12 else "")
    raise ValueError(f"layer={name!r}: is not in {model}; choose one of {names}")


def _phase(name: str) -> Phase:
    phases = {"gp": Phase.GP, "bp": Phase.BP}
    if name.lower() not in phases:
        raise ValueError(f"phase={name!r}: is unknown; choose one of gp, bp")
    return phases[name.lower()]
