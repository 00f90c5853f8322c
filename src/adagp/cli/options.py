"""Options that several commands share, so that one option means one thing everywhere."""

import math
from pathlib import Path
from typing import Annotated

import typer

from adagp.schedules import APPROXIMATIONS


def _number(value: float) -> float:
    if math.isnan(value):
        raise typer.BadParameter("nan is no number")
    return value


Recipe = Annotated[Path | None, typer.Option("--recipe", help="Start from a recipe file, TOML or JSON.")]
Model = Annotated[str | None, typer.Option(help="The model; `adagp models` lists them.")]
Data = Annotated[str | None, typer.Option("--data", help="The data set; `adagp data` lists them.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training data.")]
Batch = Annotated[int | None, typer.Option(help="Images or sentence pairs per batch.")]
Lr = Annotated[float | None, typer.Option(help="Learning rate at the start.")]
Schedule = Annotated[
    str | None,
    typer.Option(help=f"For zero, random and topk: {', '.join(APPROXIMATIONS)} (default 1); for table: its file."),
]
TopK = Annotated[int | None, typer.Option("--topk", help="Output gradients kept per sample and channel by topk.")]
Until = Annotated[str | None, typer.Option(help="Last layer or module of a prefix. Default: half of the layers.")]
TrainLimit = Annotated[int | None, typer.Option(help="Use only so many training images or sentence pairs.")]
TestLimit = Annotated[int | None, typer.Option(help="Use only so many of the test items.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set any other recipe field; may be repeated."),
]
Out = Annotated[Path | None, typer.Option(help="Folder for everything the run writes. Default: below runs/.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in the folder.")]
Device = Annotated[str | None, typer.Option(help="Where to train. Default: the accelerator, if there is one.")]
Root = Annotated[Path | None, typer.Option(help="Folder of data sets on disk. Default: ADAGP_DATA.")]
Checkpoint = Annotated[
    float,
    typer.Option(min=0, callback=_number, help="Save at least this often, in seconds, beside the end of every epoch."),
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug messages.")]
