"""Options of the accelerator that several commands share, and the machine they describe."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.accelerator import COST_TABLES, DATAFLOWS, POLICIES, Machine, Setting, read_machine
from adagp.accelerator.setting import MACHINE_KEYS, changed

MACHINE_HELP = "\n".join(
    [
        "Dataflows: `ws` keeps weights in the PEs, `os` outputs, `is` inputs, `rs` rows of all three (Eyeriss).\n",
        "Policies, which say what goes to DRAM:\n",
        *(f"- `{name}`: {policy.about}." for name, policy in POLICIES.items()),
        "\nEnergy, per word of 16 bits:\n",
        *(f"- `{name}`: {table.source}." for name, table in COST_TABLES.items()),
    ]
)

ArrayShape = Annotated[str, typer.Option("--array", metavar="ROWSxCOLUMNS", help="Shape of the array of PEs.")]
Dataflow = Annotated[str, typer.Option(help=f"One of {', '.join(DATAFLOWS)}.")]
BufferWords = Annotated[int, typer.Option(help="Words in the global buffer.")]
RegisterWords = Annotated[int, typer.Option(help="Words in the registers of a PE, for rs.")]
SecondArray = Annotated[str, typer.Option(metavar="ROWSxCOLUMNS", help="Shape of MAX's second array.")]
Grid = Annotated[int, typer.Option(help="Rows and columns to which outputs are pooled for the predictor.")]
Channels = Annotated[int, typer.Option(help="Channels of the predictor's convolution.")]
PolicyName = Annotated[str, typer.Option("--policy", help=f"What goes to DRAM: {', '.join(POLICIES)}.")]
EnergyName = Annotated[str, typer.Option("--energy", help=f"Table of energies: {', '.join(COST_TABLES)}.")]
Bandwidth = Annotated[int, typer.Option(help="DRAM words a cycle: for LOW's reloads, and for stalls.")]
Stalls = Annotated[
    bool, typer.Option("--stalls/--no-stalls", help="Let layers wait for DRAM where it is slower than the array.")
]
Latency = Annotated[int, typer.Option(help="Cycles from a DRAM request to its first word; for tiles.")]
Tiles = Annotated[
    bool,
    typer.Option(
        "--tiles/--no-tiles", help="Count as the RTL does: tiles that fit its buffers, and every move. For ws."
    ),
]
VectorLanes = Annotated[
    int | None,
    typer.Option(help="Lanes of a unit for norms, activations, pooling and the optimizer. Default: not counted."),
]
Epochs = Annotated[int, typer.Option(help="Length of the training by the paper's schedule.")]
Batch = Annotated[int, typer.Option(help="Samples in a batch.")]


_PAPER = Setting()


@dataclass(frozen=True)
class Defaults:
    """The defaults of the options, as text where the option is text."""

    array: str = str(_PAPER.machine.array)
    second_array: str = str(_PAPER.machine.second_array)
    dataflow: str = _PAPER.machine.dataflow
    grid: int = _PAPER.machine.predictor.grid
    channels: int = _PAPER.machine.predictor.channels
    policy: str = _PAPER.machine.policy
    energy: str = "eyeriss"
    bandwidth: int = _PAPER.machine.dram_words_per_cycle
    latency: int = _PAPER.machine.dram_latency_cycles
    buffer_words: int = _PAPER.machine.array.buffer_words
    register_words: int = _PAPER.machine.array.register_words
    batch: int = _PAPER.batch
    epochs: int = _PAPER.epochs


DEFAULTS = Defaults()


@dataclass(frozen=True)
class ArrayOptions:
    """The array: all that the cost of a single layer depends on."""

    machine_file: Annotated[
        Path | None,
        typer.Option("--machine", metavar="FILE", help="A machine in TOML; other options override it."),
    ] = None
    array: ArrayShape = DEFAULTS.array
    dataflow: Dataflow = DEFAULTS.dataflow
    buffer_words: BufferWords = DEFAULTS.buffer_words
    register_words: RegisterWords = DEFAULTS.register_words

    def machine(self, given: Collection[str]) -> Machine:
        """The machine of the file, or the paper's, with the options that were given.

        Raises:
            ValueError: for an impossible value, naming it.
        """
        machine = Machine() if self.machine_file is None else read_machine(self.machine_file)
        return machine_with({name: value for name, value in asdict(self).items() if name in given}, machine)


@dataclass(frozen=True)
class MachineOptions(ArrayOptions):
    """The whole machine."""

    second_array: SecondArray = DEFAULTS.second_array
    grid: Grid = DEFAULTS.grid
    channels: Channels = DEFAULTS.channels
    policy: PolicyName = DEFAULTS.policy
    bandwidth: Bandwidth = DEFAULTS.bandwidth
    latency: Latency = DEFAULTS.latency
    stalls: Stalls = False
    tiles: Tiles = False
    vector_lanes: VectorLanes = None


def machine_with(values: Mapping[str, Any], machine: Machine = _PAPER.machine) -> Machine:
    """A machine changed by the values of options, by their names in Python; names of other options are ignored.

    Raises:
        ValueError: for an impossible value, naming it.
    """
    setting = replace(_PAPER, machine=machine)
    for name, value in values.items():
        if (key := name.replace("_", "-")) in MACHINE_KEYS:
            setting = changed(setting, key, value)
    return setting.machine
