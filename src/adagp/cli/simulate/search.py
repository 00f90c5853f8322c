"""`adagp simulate search`: the best array for a network."""

from typing import Annotated

import typer

from adagp.accelerator import DATAFLOWS
from adagp.accelerator.search import search
from adagp.cli import machine_options as machines
from adagp.cli.common import check_folders, command, progress_line, refusals
from adagp.cli.machine_options import MachineOptions
from adagp.cli.options import given_options, spread
from adagp.cli.simulate.app import Mode, simulate_app
from adagp.cli.simulate.options import MACHINE_FILE_HELP, NetworkOptions, OutputOptions, refuse_idle
from adagp.report.accelerator import assumptions, design_records, machine_facts, search_table


@simulate_app.command("search", cls=Mode, epilog=MACHINE_FILE_HELP + machines.MACHINE_HELP)
@command
@spread
@refusals()
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
    refuse_idle(given, [*dataflows, machine.dataflow])
    works, name, _ = network_options.network()
    setting = network_options.setting(machine)
    most = machine.array.pes if pes is None else pes
    found = search(works(setting.batch), most, machine, dataflows, progress_line)
    best = [setting.on(array=each.array, dataflow=each.dataflow) for each in found]
    rows = [(each.machine, each.simulate(works)) for each in (*best, setting)]
    facts = [machine_facts(*row, each) for row, each in zip(rows, found, strict=False)]
    as_given = machine_facts(*rows[-1])
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
        design_records([*facts, as_given]),
    )
