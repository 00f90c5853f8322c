"""`adagp simulate sweep`: the figures of a network over ranges of assumptions."""

from pathlib import Path
from typing import Annotated

import typer

from adagp.accelerator import cost_table
from adagp.accelerator.setting import SWEPT
from adagp.accelerator.sweep import parse_ranges, sweep
from adagp.cli import machine_options as machines
from adagp.cli.common import InputError, check_folders, check_pictures, command, refusals
from adagp.cli.machine_options import DEFAULTS, MachineOptions
from adagp.cli.options import given_options, spread
from adagp.cli.simulate.app import Mode, simulate_app
from adagp.cli.simulate.options import MACHINE_FILE_HELP, NetworkOptions, OutputOptions, refuse_idle
from adagp.files import write_bytes
from adagp.report.accelerator import assumptions, design_records, energy_note, point_facts, sweep_table


@simulate_app.command("sweep", cls=Mode, epilog=MACHINE_FILE_HELP + machines.MACHINE_HELP)
@command
@spread
@refusals()
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
    refuse_idle(given, swept.get("dataflow", [machine.dataflow]))
    points = sweep(works, setting, swept, table)
    title = f"{name} over {', '.join(swept)}"
    notes = (
        "where not swept over: " + assumptions(machine, setting.batch, setting.epochs)[0],
        *assumptions(machine)[1:],
        energy_note(machine, table),
    )
    if picture is not None:
        from adagp.report.accelerator_plots import sweep_picture
        from adagp.report.plot import picture_format

        write_bytes(picture, sweep_picture(points, title, picture_format(picture)))
    facts = [point_facts(point) for point in points]
    output.show([sweep_table(title, points, notes)], {"network": name, "points": facts}, design_records(facts))
