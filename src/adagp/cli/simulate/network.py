"""`adagp simulate network`: the cost of training a network, layer by layer and in total."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adagp.accelerator import Design, cost_table
from adagp.cli import machine_options as machines
from adagp.cli.common import check_folders, check_pictures, command, refusals
from adagp.cli.machine_options import DEFAULTS, MachineOptions
from adagp.cli.options import given_options, spread
from adagp.cli.simulate.app import Mode, simulate_app
from adagp.cli.simulate.options import MACHINE_FILE_HELP, NetworkOptions, OutputOptions, refuse_idle
from adagp.files import write_bytes
from adagp.report.accelerator import assumptions, design_facts, design_table, energy_note, layer_records, layer_table


@simulate_app.command("network", cls=Mode, epilog=MACHINE_FILE_HELP + machines.MACHINE_HELP)
@command
@spread
@refusals()
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
    refuse_idle(given, [machine.dataflow])
    works, name, samples = network_options.network()
    setting = network_options.setting(machine)
    simulation = setting.simulate(works)
    batches = setting.epochs * -(-samples // setting.batch)
    title = f"{name}, {setting.epochs} epochs of {samples:,} samples"
    notes = (*assumptions(machine, setting.batch, setting.epochs), energy_note(machine, table))
    if picture is not None or timeline is not None:
        from adagp.report.accelerator_plots import layers_picture, timeline_picture
        from adagp.report.plot import picture_format

        if picture is not None:
            write_bytes(picture, layers_picture(simulation, Design.EFFICIENT, title, picture_format(picture)))
        if timeline is not None:
            write_bytes(timeline, timeline_picture(simulation, title, picture_format(timeline)))
    designs = design_facts(simulation, table, batches)
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
    output.show(tables, facts, layer_records(name, designs))
