"""`adagp simulate`: what a layer costs on a model of the accelerator."""

from dataclasses import asdict
from typing import Annotated

import typer

from adagp.accelerator import DATAFLOWS, Array, LayerShape, layer_cost
from adagp.cli import options
from adagp.cli.common import command, print_json, print_table
from adagp.report import Table
from adagp.training import RecipeError

LAYER_HELP = """Keys of a layer:

- `c_in`, `c_out`: input and output channels; for a linear layer, features.
- `out`: height and width of the output, such as `32x32`. Default: 1x1, as for a linear layer.
- `kernel`: height and width, such as `3` or `1x7`. Default: 1.
- `stride`: such as `2`. Default: 1.
- `groups`: channels are divided into so many; `c_in` for a depthwise convolution. Default: 1.
- `in`: height and width of the input. Default: `out` times `stride`.

Dataflows: `ws` keeps weights in the PEs, `os` outputs, `is` inputs, `rs` rows of all three, as Eyeriss does.
"""
_NUMBERS = ("c_in", "c_out", "groups")
_SIZES = {"out": "out", "kernel": "kernel", "stride": "stride", "in": "image"}


@command
def simulate_command(
    layer: Annotated[
        str, typer.Option(metavar="KEY=VALUE,...", help="The layer, such as c_in=64,c_out=64,out=32x32,kernel=3.")
    ],
    batch: Annotated[int, typer.Option(help="Samples in a batch.")] = 1,
    array: Annotated[str, typer.Option(metavar="ROWSxCOLUMNS", help="PEs.")] = "12x15",
    dataflow: Annotated[str, typer.Option(help=f"One of {', '.join(DATAFLOWS)}.")] = "ws",
    buffer_words: Annotated[
        int | None, typer.Option(help=f"Words in the global buffer, for rs. Default: {Array.buffer_words}.")
    ] = None,
    register_words: Annotated[
        int | None, typer.Option(help=f"Words in the registers of a PE, for rs. Default: {Array.register_words}.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Tell the cycles, multiply-accumulates, utilisation and DRAM words of a layer in training, on an array of PEs.

    By formulas, without stalls on memory. The first layer of a network has no use for its input gradient.

    Try:

    - `adagp simulate --layer c_in=64,c_out=64,out=32x32,kernel=3`: a convolution of VGG13.
    - `adagp simulate --layer c_in=64,c_out=64,out=32x32,kernel=3 --batch 128 --dataflow rs`: as Eyeriss maps it.
    - `adagp simulate --layer c_in=32,c_out=32,out=16x16,kernel=3,groups=32`: a depthwise convolution.
    - `adagp simulate --layer c_in=512,c_out=10 --batch 128 --array 16x16 --json`: a linear layer, for programs.
    """
    del debug
    try:
        shape = _shape(layer, batch)
        pes = _array(array, dataflow, buffer_words, register_words)
        costs = layer_cost(shape, pes, dataflow)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    if as_json:
        print_json(
            {
                "layer": asdict(shape),
                "array": asdict(pes),
                "dataflow": dataflow,
                **{which.value: asdict(cost) for which, cost in costs.items()},
            }
        )
        return
    rows = [
        (
            which.value.replace("_", " "),
            f"{cost.cycles:,}",
            f"{cost.macs:,}",
            f"{100 * cost.utilisation:.1f}",
            f"{cost.dram_words:,}",
        )
        for which, cost in costs.items()
    ]
    columns = ("pass", "cycles", "MACs", "utilisation %", "DRAM words")
    words = (
        "DRAM words: of the mapping of least energy, padding included"
        if dataflow == "rs"
        else "DRAM words: each tensor once, without padding"
    )
    title = f"{layer}, batch {batch}, {pes.rows}x{pes.columns} PEs, {dataflow}"
    print_table(Table(title, columns, rows, ("cycles: without stalls on memory", words), text_columns=1))


def _shape(text: str, batch: int) -> LayerShape:
    """The layer that a text such as `c_in=64,c_out=64,out=32x32,kernel=3` describes."""
    known = (*_NUMBERS, *_SIZES)
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in known:
            raise ValueError(f"layer: '{part}' is not KEY=VALUE with a known key; known keys: {', '.join(known)}")
        if key in values:
            raise ValueError(f"layer: {key} is given twice; leave one out")
        values[key] = value
    for key in ("c_in", "c_out"):
        if key not in values:
            raise ValueError(f"layer: {key} is missing; give for example c_in=64,c_out=64,out=32x32,kernel=3")
    numbers = {key: _integer(key, values[key]) for key in _NUMBERS if key in values}
    sizes = {name: _pair(key, values[key]) for key, name in _SIZES.items() if key in values}
    return LayerShape(**numbers, **sizes, batch=batch)  # type: ignore[arg-type]


def _array(text: str, dataflow: str, buffer_words: int | None, register_words: int | None) -> Array:
    rows, by, columns = text.partition("x")
    if not by:
        raise ValueError(f"array={text}: is not ROWSxCOLUMNS; give for example 12x15")
    memories = {"buffer_words": buffer_words, "register_words": register_words}
    given = {name: words for name, words in memories.items() if words is not None}
    if given and dataflow in DATAFLOWS and dataflow != "rs":
        raise ValueError(f"{', '.join(given)}: would change nothing under {dataflow}; leave it out, or choose rs")
    return Array(_integer("array", rows), _integer("array", columns), **given)


def _pair(key: str, text: str) -> tuple[int, int]:
    """`3` is short for `3x3`."""
    high, by, wide = text.partition("x")
    return _integer(key, high), _integer(key, wide if by else high)


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: '{text}' is not an integer; give for example {name}=3") from None
