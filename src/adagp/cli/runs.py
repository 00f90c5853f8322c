"""What `train` and `compare` share: from options to a recipe, a folder and a device, and the line that resumes."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adagp.cli.display import Display
from adagp.files import read_text
from adagp.schedules import APPROXIMATIONS
from adagp.training import Interrupted, Preset, RecipeError, RunFolderError, load_preset, load_recipe
from adagp.training.recipe_files import parse_assignment
from adagp.training.run.interrupt import Interrupt, catch_signals

if TYPE_CHECKING:
    import torch


def given_values(**values: Any) -> dict[str, Any]:
    """The options that were given: the others must not override a preset."""
    return {name: value for name, value in values.items() if value is not None}


def assignments(texts: list[str] | None, **options: Any) -> dict[str, Any]:
    """The recipe fields of every `--set`, and of the options that were given; None where one was not.

    Raises:
        RecipeError: When a field is given twice.
    """
    fields = given_values(**options)
    for text in texts or []:
        name, value = parse_assignment(text)
        if name in fields:
            option = f"by --{name.replace('_', '-')} and by --set" if name in options else "by --set"
            raise RecipeError(f"{name} is given twice: {option}; give it once")
        fields[name] = value
    return fields


def schedule_value(given: str | None) -> str | None:
    """What `--schedule` names: a schedule's name, or the text of the table in that file."""
    if given is None or given in APPROXIMATIONS:
        return given
    path = Path(given)
    try:
        if not path.suffix and not path.exists():
            return given  # a misspelt name: the recipe's own check tells which there are
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"schedule file '{given}' cannot be read: {reason}") from error


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f"{option} = '{text[:80]}' is not a list of whole numbers: write for example 0,1,2") from None


def base_preset(preset: str | None, recipe_file: Path | None) -> Preset:
    """What a run starts from: a preset, a recipe file, or else the demo."""
    if preset is not None and recipe_file is not None:
        raise RecipeError("--preset and --recipe both name a recipe: give one of them")
    if recipe_file is not None:
        return load_recipe(recipe_file)
    return load_preset(preset or "demo")


def chosen_device(name: str | None) -> "torch.device":
    """The device of that name, tried out; without a name the accelerator, if there is one."""
    import torch

    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # not possible on meta, which has no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"device '{name}' cannot be used: {reason}; leave --device out or give cpu") from error
    return device


def default_folder(stem: str, resume: bool) -> Path:
    """`runs/STEM`, or with a number: the first that is free, or to resume the last that is there."""
    number = 1
    while (_numbered(stem, number)).exists():
        number += 1
    if not resume:
        return _numbered(stem, number)
    if number == 1:
        raise RunFolderError(f"there is no '{_numbered(stem, 1)}' to resume: leave --resume out, or name it with --out")
    return _numbered(stem, number - 1)


def _numbered(stem: str, number: int) -> Path:
    return Path("runs") / (stem if number == 1 else f"{stem}-{number}")


def resume_line(
    command: str,
    path: Path,
    device: str | None,
    root: Path | None,
    as_json: bool,
    tensorboard: bool = False,
    **others: object,
) -> str:
    """The command that continues this run: what the user copies after Ctrl-C. `others` are options to repeat."""
    # Where the command is not on PATH, what was typed to start it is.
    adagp = "adagp" if shutil.which("adagp") or Path(sys.argv[0]).name != "adagp" else sys.argv[0]
    words = [adagp, *command.split(), "--out", str(path), "--resume"]
    for name, value in others.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [] if each is None else [option, str(each)]
    words += ["--device", device] if device else []
    words += ["--data-root", str(root)] if root else []
    words += ["--json"] if as_json else []
    words += ["--tensorboard"] if tensorboard else []
    return shlex.join(words)


@contextmanager
def resumable(display: Display, again: str) -> Iterator[Interrupt]:
    """Save and stop what runs in here when a signal comes; then say how to go on, and end as a shell expects.

    Args:
        display: Its bar is taken away before anything is said.
        again: The command that goes on; see `resume_line`.
    """
    try:
        with catch_signals() as interrupt:
            yield interrupt
    except Interrupted as stop:
        display.__exit__()
        print(f"adagp: stopped, everything so far is saved; continue with:\n  {again}", file=sys.stderr)
        raise typer.Exit(128 + stop.signal_number) from None
