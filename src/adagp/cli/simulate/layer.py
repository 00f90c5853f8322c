"""`adagp simulate layer`: the cost of the passes of one layer."""

from dataclasses import asdict
from typing import Annotated

import typer

from adagp.accelerator import layer_cost
from adagp.accelerator.text import parse_layer
from adagp.cli import machine_options as machines
from adagp.cli.common import InputError, check_folders, command, refusals
from adagp.cli.machine_options import ArrayOptions
from adagp.cli.options import given_options, spread
from adagp.cli.simulate.app import Mode, simulate_app
from adagp.cli.simulate.options import MACHINE_FILE_HELP, OutputOptions, refuse_idle
from adagp.report.accelerator import pass_facts, pass_table

LAYER_HELP = """Keys of a layer:

- `c_in`, `c_out`: input and output channels; for a linear layer, features.
- `out`: height and width of the output, such as `32x32`. Default: 1x1, as for a linear layer.
- `kernel`: height and width, such as `3` or `1x7`. Default: 1.
- `stride`: such as `2`. Default: 1.
- `groups`: the number of groups of channels; `c_in` for a depthwise convolution. Default: 1.
- `in`: height and width of the input. Default: `out` times `stride`.
"""


@simulate_app.command("layer", cls=Mode, epilog=LAYER_HELP + "\n" + MACHINE_FILE_HELP)
@command
@spread
@refusals()
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
    refuse_idle(given, [dataflow], ("buffer_words", "register_words"))
    shape = parse_layer(texts[0], batch)
    costs = layer_cost(shape, array, dataflow)
    passes = pass_facts(costs)
    output.show(
        [pass_table(f"{texts[0]}, batch {batch}, {array} PEs, {dataflow}", costs, dataflow)],
        {"layer": asdict(shape), "array": asdict(array), "dataflow": dataflow, **passes},
        [{"pass": which, **cost} for which, cost in passes.items()],
    )
