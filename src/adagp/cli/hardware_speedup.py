"""`adagp hardware speedup`: what the designs gain, clocked on the RTL."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.cli import machine_options, options
from adagp.cli.common import InputError, check_folders, command, print_json, print_table, refusals
from adagp.cli.display import Display
from adagp.errors import AdagpError
from adagp.files import parse_json, read_text, write_json
from adagp.report.hardware_speedup import speedup_table

if TYPE_CHECKING:
    from adagp.accelerator import LayerOp
    from adagp.accelerator.rtl.dram import Timing
    from adagp.accelerator.rtl.speedup import Clocked

Case = tuple[str, str, int, str, str]
"""Model, layer, batch, design and phase."""
_FIVE = "features.0,features.3,features.10,features.17,features.24"


@command
def speedup_command(
    model: Annotated[str, typer.Option(help="A network of the zoo.")] = "vgg13",
    layers: Annotated[
        str, typer.Option(help="Layers of it, by commas; all: every layer; none: the CNN alone.")
    ] = _FIVE,
    batch: machine_options.Batch = 8,
    cnn_batch: Annotated[int, typer.Option(min=0, help="Images in a batch of the small CNN; 0 leaves it out.")] = 16,
    data: Annotated[str, typer.Option(help="The data set: images of the CNN, sizes of the layers.")] = "cifar10",
    data_root: options.Root = None,
    bandwidth: Annotated[int, typer.Option(help="DRAM words a cycle, in each direction.")] = 16,
    latency: Annotated[int, typer.Option(help="Cycles from a DRAM request to its first word.")] = 20,
    file: Annotated[
        Path | None, typer.Option(help="JSON file of what was clocked. What it has is not clocked again.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Clock BP and GP batches on the RTL of all four designs, and show the speed-up beside the models' prediction.

    The small CNN of `adagp hardware train` runs whole, on real images; a network of the zoo layer by layer, with random
    numbers. 180 PEs. The five layers at a batch of 8 are 150 million cycles, about half an hour by Verilator. Without
    it Amaranth's simulator clocks them, some thousand times slower. With `--file` an interrupted run goes on where it
    was. The exit code is 1 if a bit or a cycle differs.

    Try:

    - `adagp hardware speedup --layers none`: the small CNN, a minute after the designs are compiled.
    - `adagp hardware speedup --batch 8 --file speedup.json`
    """
    del debug
    check_folders(file)
    setting = {"data": data, "bandwidth_words": bandwidth, "latency_cycles": latency}
    with refusals(), Display(as_json) as display:
        from adagp.accelerator.networks import network
        from adagp.accelerator.rtl.dram import Timing
        from adagp.accelerator.rtl.speedup import plain
        from adagp.cli.hardware import find_layer

        timing, found = Timing(bandwidth, latency), _known(file, setting)
        known = {each.case for each in found}
        ops = [] if layers == "none" else network(model, data, batch)
        names = [op.name for op in ops] if layers == "all" else layers.split(",") if ops else []
        chosen = [find_layer(ops, name, model) for name in names]
        for clocked in chain(
            _clock_cnn(data, data_root, cnn_batch, timing, known, display),
            _clock_layers(model, chosen, timing, known, display),
        ):
            found.append(clocked)
            if file is not None:
                write_json(file, plain(setting, found))
    if as_json:
        print_json(plain(setting, found))
    else:
        print_table(speedup_table(f"{bandwidth} DRAM words a cycle, latency {latency}", found))
    wrong = [each for each in found if not each.bit_exact or each.cycles != each.model_cycles]
    if wrong:
        model, layer, _, design_name, phase_name = wrong[0].case
        raise AdagpError(
            f"{model} {layer}, {phase_name} on {design_name}: not what the integer model and formulas give"
        )


def _clock_cnn(
    data: str, root: Path | None, batch: int, timing: "Timing", known: set[Case], display: Display
) -> "Iterator[Clocked]":
    """Each batch of the small CNN that is not known yet; none for a batch of 0."""
    from adagp.accelerator.rtl.speedup import CASES, SMALL_CNN, WHOLE, clock_cnn
    from adagp.accelerator.rtl.training_data import fixed_images

    for design, phase in CASES:
        if batch and (SMALL_CNN, WHOLE, batch, design.value, phase.value) not in known:
            display.on_message(f"clocking a {phase.value} batch of the small CNN on {design.value}")
            yield clock_cnn(*fixed_images(data, root, batch), design, phase, timing, display.on_message)


def _clock_layers(
    model: str, ops: "Sequence[LayerOp]", timing: "Timing", known: set[Case], display: Display
) -> "Iterator[Clocked]":
    """Each batch of the layers that is not known yet."""
    from adagp.accelerator.rtl.speedup import CASES, clock_layer

    for op, (design, phase) in product(ops, CASES):
        if (model, op.name, op.shape.batch, design.value, phase.value) not in known:
            text = f"clocking {op.name}, {phase.value} on {design.value}"
            display.on_message(text)
            tell = partial(display.on_progress, text=text)
            yield clock_layer(model, op, design, phase, timing, tell, display.on_message)


def _known(file: Path | None, setting: dict[str, Any]) -> "list[Clocked]":
    """What a file has from before; none if there is no file yet."""
    from adagp.accelerator.rtl.speedup import Clocked

    if file is None or not file.exists():
        return []
    try:
        values = parse_json(read_text(file))
        found = [Clocked.of(each) for each in values.pop("batches")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"file: '{file}' has no clocked batches: {error}; name another file") from error
    if values != setting:
        raise InputError(f"file: '{file}' was made with {values}, not {setting}; name another file")
    return found
