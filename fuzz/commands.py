"""The ways to use the program that the targets share: as the command, or as the library under the command's rules."""

import functools
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import typer

from adagp import data
from adagp.__main__ import main
from adagp.cli.common import command
from adagp.data import DataSet

TINY = (
    *("--data", "digits", "--model", "cnn", "--epochs", "1", "--batch-size", "32"),
    *("--train-limit", "64", "--test-limit", "8", "--set", "threads=1"),
)


def adagp(*words: str) -> None:
    """The `adagp` command itself; exits as it does."""
    sys.argv = ["adagp", *words]
    main()


def library(function: Callable[[], object]) -> None:
    """A function of the library; errors are reported, or not, as the commands report them."""
    try:
        command(function)()
    except typer.Exit as done:
        sys.exit(done.exit_code)


def in_child(function: Callable[[], object], folder: Path) -> int:
    """Call it in a forked process that works in `folder`; its exit code."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.chdir(folder)
            function()
            code = 0
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@functools.cache
def digits() -> DataSet:
    """Loaded once, before any case."""
    return data.load("digits")


def warm_up(scratch: Path) -> None:
    """Do a little of all in this process: what is imported on first use is then there in all its forks."""
    digits()
    small = ("train", *TINY, "--method", "adagp", "--out", str(scratch / "warm-up"), "--json")
    others = ("simulate --model vgg13", "pipeline", "schedule show --model cnn", "compare --help")
    for words in (small, *(line.split() for line in others)):
        try:
            adagp(*words)
        except SystemExit as done:
            if done.code:
                raise RuntimeError(f"adagp {' '.join(words)} ends with {done.code}") from done


def same(one: Any, two: Any) -> bool:
    """Equality in every bit, of anything a checkpoint holds; times are left out, as no two runs take the same."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and _bits(one) == _bits(two)
    if isinstance(one, dict) and isinstance(two, dict):
        keys = [key for key in one if not _is_time(key)]
        return keys == [key for key in two if not _is_time(key)] and all(same(one[key], two[key]) for key in keys)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and (one == two or (one != one and two != two))


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _is_time(key: Any) -> bool:
    return isinstance(key, str) and (key.endswith(("seconds", "_ms")))


def same_weights(one: Path, two: Path) -> bool:
    """Whether two files of `torch.save` hold the same."""
    return same(torch.load(one, weights_only=True), torch.load(two, weights_only=True))


def odd_file(draw: random.Random, path: Path) -> str:
    """Put something in the place of a file that is none, and say what."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    kind = draw.choice(("folder", "fifo", "loop", "dangling", "device", "empty", "closed folder"))
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to("nowhere/at/all")
        case "device":
            path.symlink_to("/dev/zero")
        case "empty":
            path.touch()
        case _:
            path.mkdir(mode=0)
    return f"{path.name} is a {kind}"


class Bomb:
    """Unpickled, it would leave a file: the sign that code of a file was executed."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return Path.touch, (self._canary,)


def canary() -> Path:
    """The file that must never be: beside the folder a case works in."""
    return Path.cwd().parent / "canary"
