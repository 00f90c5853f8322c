"""Options of the accelerator that several commands share, and the machine they describe."""

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from adagp.accelerator import COST_TABLES, DATAFLOWS, POLICIES, Array, Machine, PredictorShape
from adagp.accelerator.shapes import require_count
from adagp.accelerator.text import parse_array

MACHINE_HELP = "\n".join(
    [
        "Dataflows: `ws` keeps weights in the PEs, `os` outputs, `is` inputs, `rs` rows of all three (Eyeriss).\n",
        "Policies, which say what goes to DRAM:\n",
        *(f"- `{name}`: {policy.about}." for name, policy in POLICIES.items()),
        "\nEnergy, per word of 16 bits:\n",
        *(f"- `{name}`: {table.source}." for name, table in COST_TABLES.items()),
    ]
)

ArrayShape = Annotated[str, typer.Option("--array", metavar="ROWSxCOLUMNS", help="PEs.")]
Dataflow = Annotated[str, typer.Option(help=f"One of {', '.join(DATAFLOWS)}.")]
BufferWords = Annotated[int | None, typer.Option(help=f"Words in the global buffer. Default: {Array.buffer_words}.")]
RegisterWords = Annotated[
    int | None, typer.Option(help=f"Words in the registers of a PE, for rs. Default: {Array.register_words}.")
]
SecondArray = Annotated[str, typer.Option(metavar="ROWSxCOLUMNS", help="PEs of MAX's second array.")]
Grid = Annotated[int, typer.Option(help="The predictor sees outputs pooled to so many rows and columns.")]
Channels = Annotated[int, typer.Option(help="Channels of the predictor's convolution.")]
PolicyName = Annotated[str, typer.Option("--policy", help=f"What goes to DRAM: {', '.join(POLICIES)}.")]
EnergyName = Annotated[str, typer.Option("--energy", help=f"Table of energies: {', '.join(COST_TABLES)}.")]
Bandwidth = Annotated[int, typer.Option(help="DRAM words a cycle: for LOW's reloads, and for stalls.")]
Stalls = Annotated[bool, typer.Option("--stalls", help="Let layers wait for DRAM where it is slower than the array.")]
VectorLanes = Annotated[
    int | None,
    typer.Option(help="Count norms, activations, pooling and the optimizer on so many lanes. Default: not counted."),
]
Epochs = Annotated[int, typer.Option(help="Of the paper's schedule.")]
Batch = Annotated[int, typer.Option(help="Samples in a batch.")]


@dataclass(frozen=True)
class Defaults:
    """Where nothing else is said; the paper gives neither the batch nor the predictor's sizes."""

    array: str = "12x15"
    second_array: str = "8x10"
    dataflow: str = "ws"
    grid: int = 4
    channels: int = 1
    policy: str = "separate"
    energy: str = "eyeriss"
    bandwidth: int = 16
    batch: int = 128
    epochs: int = 90


DEFAULTS = Defaults()


def machine_from(
    array: str = DEFAULTS.array,
    dataflow: str = DEFAULTS.dataflow,
    buffer_words: int | None = None,
    register_words: int | None = None,
    second_array: str = DEFAULTS.second_array,
    grid: int = DEFAULTS.grid,
    channels: int = DEFAULTS.channels,
    policy: str = DEFAULTS.policy,
    bandwidth: int = DEFAULTS.bandwidth,
    stalls: bool = False,
    vector_lanes: int | None = None,
) -> Machine:
    """The machine that the options describe.

    Raises:
        ValueError: for a value that cannot be, naming it.
    """
    memories = {"buffer_words": buffer_words, "register_words": register_words}
    like = replace(Array(), **{name: words for name, words in memories.items() if words is not None})
    require_count("bandwidth", bandwidth)
    return Machine(
        array=parse_array("array", array, like),
        dataflow=dataflow,
        predictor=PredictorShape(grid, channels),
        second_array=parse_array("second-array", second_array, like),
        dram_words_per_cycle=bandwidth,
        stalls=stalls,
        policy=policy,
        vector_lanes=vector_lanes,
    )
