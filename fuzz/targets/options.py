"""The options of every command, as the commands declare them: wrong values, conflicts, `--set`."""

import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import typer

from adagp import models
from adagp.accelerator import DATAFLOWS
from adagp.cli import app
from adagp.training import Recipe, methods, preset_names
from fuzz.case import Case, Target
from fuzz.commands import TINY, adagp
from fuzz.mutate import junk, number_text

# Options that keep a command's work small; what a case adds comes after them, and the last one counts.
_SMALL = {
    "train": TINY,
    "compare": (*TINY, "--methods", "bp,adagp", "--seeds", "0"),
    "schedule": ("--epochs", "3", "--steps-per-epoch", "20"),
    "schedule show": ("--model", "cnn"),
    "simulate network": ("--model", "vgg13"),
    "simulate sweep": ("--model", "vgg13", "batch=1"),
    "simulate search": ("--model", "vgg13", "--pes", "4"),
    "hardware check": ("--array", "2x2"),
    "reproduce approximation-accuracy": ("--data", "digits", "--tables", "3", "--epochs", "1", "--train-limit", "128"),
    "reproduce approximation-kernel": ("--rounds", "1"),
}
_OFTEN = {"train": 12, "compare": 6, "schedule": 6, "schedule show": 8, "simulate network": 4, "pipeline": 8}
_OFTEN |= {"simulate layer": 2, "simulate sweep": 2}
_RARELY = ("models", "hardware report", "reproduce approximation-kernel", "reproduce predictor-quality")
# What works as long as the user wants: it is stopped, not called a hang.
_LONG = ("train", "compare", "models", "data", "hardware", "reproduce")
_LONG_SECONDS = 3.0
_SKIPPED = ("install_completion", "show_completion", "help", "debug")  # --debug is there to show tracebacks
# Never a place that is not the case's own: the commands write there.
_PATHS = (
    *("file", "folder", "folder/new.png", "new.svg", "new.txt", "no/such/folder", "file/below", "pipe", "loop", ""),
    *("n" * 300, "é.png", "a b", "-", "--json", "new\n.png", "[red].svg", "a\udcff.png", "/proc/none/new.png"),
)
_WORDS: dict[str, Any] = {
    "preset": preset_names,
    "method": methods.names,
    "methods_": lambda: ["bp", "bp,adagp", "bp,bp", "skip,zero", "short-bp", ",", "topk,prefix"],
    "model": models.names,
    "data_name": lambda: ["digits", "mnist5k", "cifar10", "voc2007", "multi30k", "cifar100", "imagenet"],
    "schedule": lambda: [
        "1",
        "2",
        "3",
        "ladder",
        "gpipe",
        "dapple",
        "chimera",
        "file",
        "folder",
        "pipe",
        "loop",
        "table",
    ],
    "source": lambda: ["zero", "random", "topk", "predicted", "mean", "last", "skip", "backprop"],
    "device": lambda: ["cpu", "cpu:0", "cpu:7", "cuda", "cuda:99", "meta", "mps", "xla", "privateuseone"],
    "dataflow": lambda: list(DATAFLOWS),
    "array": lambda: ["1x1", "12x15", "0x3", "3x", "x", "3x3x3", "-1x4", "1000000x1000000", "\uff12x3", "1e3x2"],
    "phases": lambda: ["BP", "4GP,BP", "999999999GP", "0GP", "-1GP", "GP,,BP", "WARMUP,BP", "bp", "9" * 5000 + "GP"],
    "until": lambda: ["features.0", "features", "classifier", "nothing", "", "features.*"],
    "keys": lambda: ["c_in=3,c_out=4", "c_in=3,c_out=4,out=2x2,stride=2"],
    "layer": lambda: ["c_in=3,c_out=4", "c_in=3,c_out=4,out=2x2,kernel=3,groups=2"],
    "ranges": lambda: ["grid=1,2", "dataflow=ws,rs", "batch=2", "="],
    "sweep_over": lambda: ["batch=1,2", "grid=0", "batch=", "=", "batch=1,,2", "nothing=1", "array=2x2,3x3"],
    "module": lambda: ["nets:good", "nets:bad", "broken:x", "os:getpid", "nets", ":", "nets:", "raises:x", "leaves:x"],
    "design": lambda: ["baseline", "low", "efficient", "max", "none"],
}
_NETS = (
    "from torch import nn\n\ndef good():\n    return nn.Conv2d(3, 4, 3)\n\n"
    "def bad():\n    raise KeyError('a network of the user')\n"
)


@cache
def _commands() -> dict[str, Any]:
    """Every command by its words, as click knows them."""
    found: dict[str, Any] = {}

    def walk(words: tuple[str, ...], command: Any) -> None:
        if hasattr(command, "list_commands"):
            context = typer.Context(command)
            for name in command.list_commands(context):
                walk((*words, name), command.get_command(context, name))
        if not hasattr(command, "list_commands") or getattr(command, "invoke_without_command", False):
            found[" ".join(words)] = command

    walk((), typer.main.get_command(app))
    return found


def _make(draw: random.Random, templates: Path) -> Case:
    _surroundings()
    names = list(_commands())
    weights = [_OFTEN.get(name, 0.05 if name in _RARELY else 0.5) for name in names]
    name = draw.choices(names, weights)[0]
    parameters = [each for each in _commands()[name].params if each.name not in _SKIPPED]
    chosen = draw.sample(parameters, min(len(parameters), draw.choice((1, 1, 2, 2, 3, 5))))
    words = [*name.split(), *_SMALL.get(name, ())]
    given = [word for parameter in chosen for word in _words(draw, parameter)]
    given += draw.choice(
        ([], [], [], [], [], [], [junk(draw)], [f"--{junk(draw)}"], ["--"], [given[0]] if given else [])
    )
    stop = _LONG_SECONDS if name.split()[0] in _LONG else None
    return Case(f"adagp {name} {given!a}"[:500], lambda: adagp(*words, *given), stop_seconds=stop)


def _words(draw: random.Random, parameter: Any) -> list[str]:
    """One option with a value, good or bad."""
    if not parameter.opts or parameter.param_type_name == "argument":
        return [_value(draw, parameter)]
    option = draw.choice(parameter.opts)
    if getattr(parameter, "is_flag", False):
        return [option] if draw.random() < 0.9 else [f"{option}={junk(draw)}"]
    times = draw.choice((1, 1, 2)) if parameter.multiple else 1
    if draw.random() < 0.03:
        return [option]
    return [word for _ in range(times) for word in _joined(draw, option, _value(draw, parameter))]


def _joined(draw: random.Random, option: str, value: str) -> list[str]:
    return [f"{option}={value}"] if draw.random() < 0.3 else [option, value]


def _value(draw: random.Random, parameter: Any) -> str:
    kind = repr(getattr(parameter, "type_descriptor", None) or parameter.type).lower()  # by the version of typer
    if "path" in kind:
        return draw.choice(_PATHS)
    if parameter.name == "set_":
        return assignment(draw)
    if parameter.name in _WORDS and draw.random() < 0.6:
        return str(draw.choice(_WORDS[parameter.name]()))
    if "'int'" in kind or "float" in kind:
        return number_text(draw)
    return junk(draw) if draw.random() < 0.7 else number_text(draw)


def assignment(draw: random.Random) -> str:
    """`field=value`, or something like it."""
    field = draw.choice((*Recipe().to_dict(), "sizes.width", "sizes.", "sizes", ".", "", junk(draw)))
    values = (
        "[1]",
        "{a=1}",
        "{}",
        "1979-05-27",
        "07:32:00",
        "'x'",
        "'''x\ny'''",
        "1\nlr=2",
        "#",
        "[" * 5000,
        "true",
        "-1",
    )
    return (
        field
        + draw.choice(("=", "=", "=", "=", "==", "", " = "))
        + draw.choice((*values, junk(draw), number_text(draw)))
    )


def _surroundings() -> None:
    """Things that the options can name."""
    Path("file").write_text("nothing of use\n")
    Path("folder").mkdir()
    Path("table").write_text("layer 1 2\n* zero backprop\n")
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("nets.py").write_text(_NETS)
    Path("broken.py").write_text("def x(:\n")
    Path("raises.py").write_text("raise RuntimeError('while it is imported')\n")
    Path("leaves.py").write_text("import sys\nsys.exit(3)\n")


def _prepare(folder: Path) -> None:
    _commands()


# A large network that is trained has a right to its memory.
TARGET = Target("options", "options of every command, `--set`, conflicts", 1400, _make, _prepare, memory_bytes=5 << 29)
