"""`adagp hardware`: the accelerator in RTL: check it, synthesise it, write it out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adagp.accelerator import Array, Design
from adagp.accelerator.rtl.tools import ToolError, find_yosys, yosys_version
from adagp.accelerator.text import parse_array
from adagp.cli import machine_options, options
from adagp.cli.common import check_folders, command, print_json, print_table
from adagp.cli.display import Display
from adagp.files import write_bytes
from adagp.report import Table
from adagp.schedules import Phase
from adagp.training import RecipeError, TrainingError

_NAMES = ", ".join(design.value for design in Design)
DesignName = Annotated[str, typer.Option("--design", help=f"One of {_NAMES}.")]

hardware_app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help=__doc__)


@contextmanager
def hardware_errors() -> Iterator[None]:
    """Errors of the RTL as the command line reports them."""
    try:
        yield
    except ValueError as error:
        raise RecipeError(str(error)) from error
    except ToolError as error:
        raise TrainingError(str(error)) from error


@hardware_app.command("check")
@command
def check_command(
    array: Annotated[str, typer.Option(metavar="ROWSxCOLUMNS", help="PEs; small arrays are quick to clock.")] = "4x3",
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers.")] = 0,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Run a convolution, a linear layer and a GP step on the RTL, clock by clock, and hold them against torch.

    Each must equal an integer model in every bit, lie within the quantisation error of torch in 64-bit floating point,
    and take the cycles of the accelerator model and three more for each product. Exits with 1 where one does not.

    Try:

    - `adagp hardware check`: seven computations, a few seconds.
    - `adagp hardware check --array 12x15 --seed 1`: on the array of the paper, about a minute.
    """
    del debug
    with hardware_errors():
        from adagp.accelerator.rtl.checks import run_checks

        found = list(run_checks(*parse_pes("array", array), seed))
    if as_json:
        print_json(
            {"array": array, "seed": seed, "checks": [{**asdict(check), "passed": check.passed} for check in found]}
        )
    else:
        rows = [
            (
                check.name,
                "yes" if check.exact else "NO",
                f"{check.error:.2e}",
                f"{check.bound:.2e}" if check.within else f"{check.bound:.2e} EXCEEDED",
                f"{check.cycles:,}",
                f"{check.model_cycles:,}",
            )
            for check in found
        ]
        notes = (
            "bit-exact: against whole numbers computed by torch's convolutions, without banks and folds",
            "error: the largest distance from torch in 64-bit floating point; bound: what 16 bits allow",
            "cycles: of the products, measured; model: the accelerator model's, and 3 for each descriptor",
        )
        columns = ("computed", "bit-exact", "error", "bound", "cycles", "model")
        print_table(Table(f"{array} PEs in simulation", columns, rows, notes))
    if not all(check.passed for check in found):
        raise TrainingError(
            "the RTL does not compute what it should: " + ", ".join(c.name for c in found if not c.passed)
        )


@hardware_app.command("report")
@command
def report_command(as_json: options.Json = False, debug: options.Debug = False) -> None:
    """Clock a BP and a GP batch of a small network on every design, and set the accelerator model beside.

    Two convolutions and a linear layer, batch 2, 4x3 PEs; MAX's second array has 3x2.

    Try:

    - `adagp hardware report`: seven batches, about half a minute.
    """
    del debug
    with hardware_errors(), Display(as_json) as display:
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
        return
    rows = [
        (
            batch.design.value,
            batch.phase.value,
            *(
                f"{cycles:,}"
                for cycles in (batch.measured, batch.products, batch.moves, batch.descriptors, batch.model)
            ),
        )
        for batch in found
    ]
    notes = (
        "measured = products + moves + descriptors; of two cores, the slower one in each stage",
        "the model counts products, and what LOW loads; the RTL also moves operands and results, in all designs alike",
        "low: the model loads no filling of folds, and in BP also Adam's moments, which the RTL does not have",
        "max, BP: the model learns beside the same layer's backward; the RTL waits for the gradient that is made there",
    )
    columns = ("design", "batch", "measured", "products", "moves", "descriptors", "model")
    print_table(Table("Cycles of a batch on the RTL", columns, rows, notes, text_columns=2))


@hardware_app.command("synth")
@command
def synth_command(
    design: DesignName = "baseline",
    target: Annotated[
        str, typer.Option(help="xc7: a Xilinx 7-series FPGA; osu018: open 0.18 um standard cells.")
    ] = "xc7",
    array: machine_options.ArrayShape = machine_options.DEFAULTS.array,
    second_array: machine_options.SecondArray = machine_options.DEFAULTS.second_array,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Tell the resources of a design, by yosys: nothing is placed or routed, and no power is estimated.

    Try:

    - `adagp hardware synth --design baseline --target xc7`: LUTs, registers, multipliers, block RAMs.
    - `adagp hardware synth --design max --target osu018`: standard cells and their area.
    - `adagp hardware synth --design low --array 4x4 --json`: a small one, for programs.
    """
    del debug
    with hardware_errors():
        from adagp.accelerator.rtl.synthesis import check_target, synthesise
        from adagp.accelerator.rtl.top import Accelerator, geometries

        cores = geometries(_design(design), parse_pes("array", array), parse_pes("second_array", second_array))
        check_target(target)
        yosys = yosys_version()
        found = synthesise(Accelerator(cores), target)
    memory_bits = sum(core.memory_bits for core in cores.values())
    if as_json:
        facts = {"design": design, "target": target, "array": array, "yosys": yosys}
        print_json({**facts, **found, "memory_bits": memory_bits})
        return
    rows = [(name, f"{count:,}") for name, count in {**found, "memory_bits": memory_bits}.items()]
    notes = (
        ("lut: with inverters and shift registers, before any are packed in pairs",)
        if target == "xc7"
        else ("area: of logic cells; memories are left out, as a chip takes them from a memory compiler",)
    )
    print_table(Table(f"{design}, {array} PEs, {target}, yosys {yosys}", ("resource", "used"), rows, notes))


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
    """
    del debug
    written = []
    with hardware_errors():
        from adagp.accelerator.rtl.top import Accelerator, geometries
        from adagp.accelerator.rtl.verilog import verilog as converted
        from adagp.training.run.folder import make_folder

        sizes = parse_pes("array", array), parse_pes("second_array", second_array)
        designs = {design: geometries(design, *sizes) for design in Design}
        find_yosys()
        make_folder(verilog)
        for design, cores in designs.items():
            write_bytes(verilog / f"{design.value}.v", converted(Accelerator(cores)).encode())
            written.append(str(verilog / f"{design.value}.v"))
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
    with hardware_errors():
        from adagp.report.hardware_diagram import designs_png

        picture = designs_png(parse_pes("array", array), parse_pes("second_array", second_array))
    write_bytes(out, picture)
    print(f"picture: {out}")


def _design(name: str) -> Design:
    try:
        return Design(name)
    except ValueError:
        raise ValueError(f"design={name!r}: is unknown; choose one of {_NAMES}") from None


def parse_pes(name: str, text: str) -> tuple[int, int]:
    """Rows and columns of an array.

    Raises:
        ValueError: if the text is not two whole numbers, or there is no PE.
    """
    array = parse_array(name, text, Array())
    return array.rows, array.columns
