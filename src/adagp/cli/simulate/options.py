"""Groups of options that the modes share."""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from adagp.accelerator import CNNS, DATA_SHAPES, LayerOp, Machine, Setting, network
from adagp.accelerator.setting import MACHINE_KEYS
from adagp.accelerator.text import parse_inputs
from adagp.cli import machine_options as machines
from adagp.cli import options
from adagp.cli.common import InputError, print_json, print_table, write_text
from adagp.cli.machine_options import DEFAULTS
from adagp.report.table import Table, records_csv
from adagp.user_code import prints_on_stderr

MACHINE_FILE_HELP = (
    'A file for `--machine` has lines such as `array = "12x15"`. '
    f"Its keys: {', '.join(f'`{key}`' for key in MACHINE_KEYS)}.\n\n"
)
MODULE_SAMPLES = 50_000


class Network(NamedTuple):
    """A network to simulate: its work for a batch size, its name, and the samples in an epoch."""

    works: Callable[[int], list[LayerOp]]
    name: str
    samples: int


@dataclass(frozen=True)
class NetworkOptions:
    """A network of the zoo or of the user, and its training."""

    model: Annotated[str | None, typer.Option(help="A network of `adagp models`.")] = None
    data_name: Annotated[
        str | None, typer.Option("--data", help=f"What it is trained on: {', '.join(DATA_SHAPES)}. Default: cifar10.")
    ] = None
    module: Annotated[
        str | None, typer.Option(metavar="PACKAGE.FILE:FACTORY", help="A network of yours: a function that builds it.")
    ] = None
    input_shape: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="[int:]SIZES,...",
            help="Shapes of a sample's inputs, for --module; int:16 for 16 integers, such as tokens. Default: 3x32x32.",
        ),
    ] = None
    batch: machines.Batch = DEFAULTS.batch
    epochs: machines.Epochs = DEFAULTS.epochs

    def network(self) -> Network:
        """The network of the options; its work is computed once for each batch size."""
        if self.module is not None:
            return self._of_the_user(self.module)
        if self.input_shape is not None:
            raise InputError("input: belongs to --module; the zoo's networks have their own")
        if self.model is None:
            raise InputError(f"model: is missing; give --model (such as {', '.join(CNNS[:6])}), --module or --layer")
        model, data = self.model, self.data_name or "cifar10"
        samples = DATA_SHAPES[data].samples if data in DATA_SHAPES else 0
        return Network(functools.cache(lambda batch: network(model, data, batch)), f"{model} on {data}", samples)

    def _of_the_user(self, module: str) -> Network:
        if self.model or self.data_name:
            raise InputError("module: stands for model and data; leave these out")
        from adagp.accelerator.user_module import module_network

        inputs = parse_inputs("input", self.input_shape or "3x32x32")

        @functools.cache
        def ops(batch: int) -> list[LayerOp]:
            with prints_on_stderr():
                return module_network(module, inputs, batch)

        return Network(ops, module, MODULE_SAMPLES)

    def setting(self, machine: Machine) -> Setting:
        """The setting of its training on a machine."""
        return Setting(self.batch, self.epochs, machine)


@dataclass(frozen=True)
class OutputOptions:
    """How results are shown."""

    csv_file: Annotated[Path | None, typer.Option("--csv", help="Also write the figures to this file.")] = None
    as_json: options.Json = False
    debug: options.Debug = False

    def show(self, tables: Sequence[Table], facts: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
        """Print tables for people or facts for programs; write rows to the CSV file."""
        if self.csv_file is not None:
            write_text(self.csv_file, records_csv(rows))
        if self.as_json:
            print_json(facts)
            return
        for table in tables:
            print_table(table)


def refuse_idle(
    given: Collection[str], dataflows: Sequence[str], memories: Sequence[str] = ("register_words",)
) -> None:
    """Refuse memory sizes without effect: only rs reads registers, and for a single layer the buffer."""
    idle = [name for name in memories if name in given]
    if idle and "rs" not in dataflows:
        raise InputError(
            f"{', '.join(idle)}: would change nothing under {', '.join(dict.fromkeys(dataflows))}; leave it out, "
            "or choose rs"
        )
