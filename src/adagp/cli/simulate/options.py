"""Options that the modes share, in groups, and how their results are shown."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from adagp.accelerator import CNNS, DATA_SHAPES, LayerOp, Machine, Setting, network
from adagp.accelerator.setting import MACHINE_KEYS
from adagp.accelerator.text import parse_sizes
from adagp.cli import machine_options as machines
from adagp.cli import options
from adagp.cli.common import InputError, print_json, print_table
from adagp.cli.machine_options import DEFAULTS
from adagp.files import write_bytes
from adagp.report import Table
from adagp.report.accelerator_records import Record, records_csv

MACHINE_FILE_HELP = (
    'A file for `--machine` has lines such as `array = "12x15"`. '
    f"Its keys: {', '.join(f'`{key}`' for key in MACHINE_KEYS)}.\n\n"
)
MODULE_SAMPLES = 50_000


def given_options(context: typer.Context) -> set[str]:
    """The names of the parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of each dataclass among its parameters: Typer has no groups of options."""
    signature = inspect.signature(function)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    @functools.wraps(function)
    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        function(**values)

    parameters = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            parameters.append(parameter)
            continue
        parameters += [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in fields(groups[name])
        ]
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    called.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword_only}
    return called


class Network(NamedTuple):
    """A network to simulate: its work for a batch size, its name, and the samples of an epoch."""

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
        str | None, typer.Option("--input", metavar="CxHxW", help="Shape of a sample, for --module. Default: 3x32x32.")
    ] = None
    batch: machines.Batch = DEFAULTS.batch
    epochs: machines.Epochs = DEFAULTS.epochs

    def network(self) -> Network:
        """The network that is asked for; its work is computed once for each batch size."""
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

        shape = parse_sizes("input", self.input_shape or "3x32x32")
        return Network(functools.cache(lambda batch: module_network(module, shape, batch)), module, MODULE_SAMPLES)

    def setting(self, machine: Machine) -> Setting:
        """Its training on a machine."""
        return Setting(self.batch, self.epochs, machine)


@dataclass(frozen=True)
class OutputOptions:
    """How results are shown."""

    csv_file: Annotated[Path | None, typer.Option("--csv", help="Also write the figures to this file.")] = None
    as_json: options.Json = False
    debug: options.Debug = False

    def show(self, tables: Sequence[Table], facts: dict[str, Any], rows: Sequence[Record]) -> None:
        """Print tables for people or facts for programs; write rows to the CSV file."""
        if self.csv_file is not None:
            write_bytes(self.csv_file, records_csv(rows).encode())
        if self.as_json:
            print_json(facts)
            return
        for table in tables:
            print_table(table)


@contextmanager
def refusals() -> Iterator[None]:
    """What the model refuses is a wrong option."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


def refuse_idle(
    given: Collection[str], dataflows: Sequence[str], memories: Sequence[str] = ("register_words",)
) -> None:
    """Only the row-stationary mapping looks at registers, and for a single layer at the buffer."""
    idle = [name for name in memories if name in given]
    if idle and "rs" not in dataflows:
        raise InputError(
            f"{', '.join(idle)}: would change nothing under {', '.join(dict.fromkeys(dataflows))}; leave it out, "
            "or choose rs"
        )
