"""Options that several commands share, so that one option means one thing everywhere."""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer


def _number(value: float) -> float:
    if math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


Preset = Annotated[str | None, typer.Option(help="Start from a shipped recipe; the list is below.")]
Recipe = Annotated[Path | None, typer.Option("--recipe", help="Start from a recipe file, TOML or JSON.")]
Model = Annotated[str | None, typer.Option(help="The model; `adagp models` lists them.")]
Data = Annotated[str | None, typer.Option("--data", help="The data set; `adagp data` lists them.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training data.")]
Batch = Annotated[int | None, typer.Option(help="Images or sentence pairs per batch.")]
Lr = Annotated[float | None, typer.Option(help="Learning rate at the start.")]
TopK = Annotated[int | None, typer.Option("--topk", help="Output gradients kept per sample and channel by topk.")]
Until = Annotated[str | None, typer.Option(help="Last layer or module of a prefix. Default: half of the layers.")]
TrainLimit = Annotated[int | None, typer.Option(help="Use at most this number of training images or sentence pairs.")]
TestLimit = Annotated[int | None, typer.Option(help="Use at most this number of test items.")]
Seeds = Annotated[str, typer.Option(help="Comma-separated whole numbers.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set any other recipe field; may be repeated."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: PyTorch's choice.")]
Out = Annotated[Path | None, typer.Option(help="Folder for everything the run writes. Default: below runs/.")]
Folder = Annotated[Path, typer.Option(help="Folder for everything that is written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in the folder.")]
AdviseSeconds = Annotated[
    float, typer.Option(min=1, callback=_number, help="For method advised: how long to measure before training.")
]
Device = Annotated[str | None, typer.Option(help="Where to train. Default: the accelerator, if there is one.")]
Root = Annotated[Path | None, typer.Option(help="Folder of data sets on disk. Default: ADAGP_DATA.")]
Checkpoint = Annotated[
    float,
    typer.Option(min=0, callback=_number, help="Longest time between two checkpoints, in seconds."),
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")]
Picture = Annotated[Path | None, typer.Option(help="Also draw the figure into this file, .png or .svg.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug messages.")]


def recipes_help() -> str:
    """The methods and presets, for the help of commands that train."""
    from adagp.training import methods
    from adagp.training.recipe_files import preset_summaries

    known = (f"- `{line.replace(': ', '`: ', 1)}." for line in methods.summary().splitlines())
    presets = (f"- `{name}`: {about}." for name, about in preset_summaries().items())
    return "\n".join(["Methods:\n", *known, "\nPresets:\n", *presets])


def given_options(context: typer.Context) -> set[str]:
    """The names of the parameters that are on the command line."""
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
