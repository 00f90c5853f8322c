"""`adagp simulate network`: the cost of training a network, layer by layer and in total."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from adagp.accelerator import METHODS, Design, LayerOp, Machine, Setting, batch_kinds, cost_table
from adagp.accelerator.schedule import LEVELS, SCALE
from adagp.accelerator.shapes import require_known
from adagp.cli import machine_options as machines
from adagp.cli.common import InputError, check_folders, check_pictures, command, refusals
from adagp.cli.machine_options import DEFAULTS, MachineOptions
from adagp.cli.options import given_options, spread
from adagp.cli.simulate.app import Mode, simulate_app
from adagp.cli.simulate.options import MACHINE_FILE_HELP, NetworkOptions, OutputOptions, refuse_idle
from adagp.files import write_bytes
from adagp.report.accelerator import assumptions, design_facts, design_table, energy_note, layer_records, layer_table
from adagp.report.batch_kinds import Kinds, kinds_facts, kinds_table, schedule_words
from adagp.schedules.plan import require_scale

METHODS_HELP = "\n".join(["Methods:\n", *(f"- `{name}`: {about}." for name, about in METHODS.items()), "\n"])
LEVELS_TEXT = ",".join(f"{scale:g}:{share:g}" for scale, share in LEVELS)


@simulate_app.command("network", cls=Mode, epilog=METHODS_HELP + MACHINE_FILE_HELP + machines.MACHINE_HELP)
@command
@spread
@refusals()
def network_command(
    context: typer.Context,
    network_options: NetworkOptions,
    machine_options: MachineOptions,
    output: OutputOptions,
    method: Annotated[str, typer.Option(help=f"The training: {', '.join(METHODS)}.")] = "adagp",
    scale: Annotated[
        float, typer.Option(help="Size of the samples in a coarse batch, as a fraction of the full size.")
    ] = SCALE,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="SCALE:SHARE,...",
            help=f"For progressive, scales and their shares of the training. Default: {LEVELS_TEXT}.",
        ),
    ] = None,
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
    - `adagp simulate network --model vgg13 --method progressive --levels 0.5:0.6,1:0.4`: smaller images instead of GP.
    - `adagp simulate network --model vgg13 --machine mine.toml`: on a machine of yours.
    - `adagp simulate network --module mypackage.nets:build --input 3x64x64`: a network of yours.
    - `adagp simulate network --module mypackage.nets:translator --input int:16,int:20`: one that takes tokens.
    """
    check_folders(output.csv_file)
    check_pictures(picture, timeline)
    given = given_options(context)
    machine, table = machine_options.machine(given), cost_table(energy)
    refuse_idle(given, [machine.dataflow])
    works, name, samples = network_options.network()
    setting = _with_method(network_options.setting(machine), method, scale, levels)
    simulation = setting.simulate(works)
    kinds, why_not = _kinds(works(setting.batch), machine, scale, required=method != "adagp" or "scale" in given)
    batches = setting.epochs * -(-samples // setting.batch)
    title = f"{name}, {setting.epochs} epochs of {samples:,} samples"
    schedule = schedule_words(method, scale, setting.levels)
    notes = (*assumptions(machine, setting.batch, setting.epochs, schedule), energy_note(machine, table))
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
        "method": method,
        "batches": batches,
        "machine": asdict(machine),
        "energy_unit": table.unit,
        "batch_kinds": kinds_facts(kinds, table),
        "designs": designs,
    }
    tables = [
        layer_table(simulation, table),
        kinds_table(kinds, table, why_not),
        design_table(title, simulation, table, batches, notes),
    ]
    output.show(tables, facts, layer_records(name, designs))


def _with_method(setting: Setting, method: str, scale: float, levels: str | None) -> Setting:
    """The setting of a method.

    Raises:
        ValueError: For an unknown method, a scale that is none, or levels without effect.
    """
    require_known("method", method, METHODS)
    require_scale(scale)
    if scale == 1:
        raise InputError("scale=1: a coarse batch has smaller samples than a full one; give a fraction below 1")
    chosen = replace(setting, method=method, scale=scale)
    if levels is None:
        return chosen
    if method != "progressive":
        raise InputError(
            f"levels: would change nothing with method {method}; leave it out, or use --method progressive"
        )
    from adagp.training.recipe import parse_levels

    try:
        return replace(chosen, levels=parse_levels(levels))
    except ValueError as error:
        raise InputError(str(error)) from error


def _kinds(ops: list[LayerOp], machine: Machine, scale: float, required: bool) -> tuple[Kinds, tuple[str, ...]]:
    """One batch of each kind; a coarse one that is impossible is left out with the reason, unless it is required."""
    try:
        return batch_kinds(ops, machine, scale), ()
    except ValueError as error:
        if required:
            raise
        return batch_kinds(ops, machine), (f"no coarse batch: {error}",)
