"""The frame of every command that trains: its options, recipe, folder and device, and how it stops and resumes."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp import data
from adagp.cli import options
from adagp.cli.display import Display
from adagp.files import read_text
from adagp.schedules import APPROXIMATIONS
from adagp.training import Interrupted, Preset, Recipe, RecipeError, RunFolderError, load_preset, load_recipe
from adagp.training.recipe_files import parse_assignment
from adagp.training.run.interrupt import Interrupt, catch_signals
from adagp.training.run.session import CHECKPOINT_SECONDS, Session

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RecipeOptions:
    """A recipe to start from, and the fields that have an option of their own."""

    preset: options.Preset = None
    recipe_file: options.Recipe = None
    model: options.Model = None
    data_name: options.Data = None
    epochs: options.Epochs = None
    batch_size: options.Batch = None
    lr: options.Lr = None
    schedule: Annotated[
        str | None,
        typer.Option(
            help=f"For zero, random and topk: {', '.join(APPROXIMATIONS)} (default 1); for table: its file. "
            "`advise` measures a table that pays."
        ),
    ] = None
    topk: options.TopK = None
    until: options.Until = None
    train_limit: options.TrainLimit = None
    test_limit: options.TestLimit = None
    set_: options.Set = None

    @property
    def names_base(self) -> bool:
        """Whether a preset or a recipe file is named."""
        return self.preset is not None or self.recipe_file is not None

    def base(self) -> Preset:
        """The preset, the recipe file, or by default the demo."""
        if self.preset is not None and self.recipe_file is not None:
            raise RecipeError("--preset and --recipe both name a recipe: give one of them")
        if self.recipe_file is not None:
            return load_recipe(self.recipe_file)
        return load_preset(self.preset or "demo")

    def fields(self, **others: Any) -> dict[str, Any]:
        """The recipe fields that were given, here or in `others`."""
        return assignments(
            self.set_,
            **others,
            model=self.model,
            data=self.data_name,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            schedule=schedule_value(self.schedule),
            topk=self.topk,
            until=self.until,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
        )


@dataclass(frozen=True)
class RunOptions:
    """Where to train, how often to save, and how results are shown."""

    resume: options.Resume = False
    device: options.Device = None
    data_root: options.Root = None
    checkpoint_seconds: options.Checkpoint = CHECKPOINT_SECONDS
    as_json: options.Json = False
    debug: options.Debug = False

    def resume_line(self, command: str, path: Path, **others: object) -> str:
        """The command that continues this run, to be copied after Ctrl-C. `others` are options to repeat."""
        # If `adagp` is not on PATH, repeat what was typed to start it.
        adagp = "adagp" if shutil.which("adagp") or Path(sys.argv[0]).name != "adagp" else sys.argv[0]
        words = [adagp, *command.split(), "--out", str(path), "--resume"]
        repeated = {**others, "device": self.device, "data_root": self.data_root, "json": self.as_json}
        for name, value in repeated.items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                words += [option] if value else []
            else:
                for each in value if isinstance(value, list) else [value]:
                    words += [] if each is None else [option, str(each)]
        return shlex.join(words)


def assignments(texts: list[str] | None, **options: Any) -> dict[str, Any]:
    """The recipe fields of every `--set` and of `options`; an option that is None was not given.

    Raises:
        RecipeError: When a field is given twice.
    """
    fields = {name: value for name, value in options.items() if value is not None}
    for text in texts or []:
        name, value = parse_assignment(text)
        if name in fields:
            option = f"by --{name.replace('_', '-')} and by --set" if name in options else "by --set"
            raise RecipeError(f"{name} is given twice: {option}; give it once")
        fields[name] = value
    return fields


def schedule_value(given: str | None) -> str | None:
    """The name of a schedule, or the text of the table in the file that `--schedule` names."""
    if given is None or given in APPROXIMATIONS:
        return given
    path = Path(given)
    try:
        if not path.suffix and not path.exists():
            return given  # a misspelt name: the recipe's own check lists the known ones
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"schedule file '{given}' cannot be read: {reason}") from error


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers, separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f"{option} = '{text[:80]}' is not a list of whole numbers: write for example 0,1,2") from None


def fractions(option: str, text: str) -> tuple[float, ...]:
    """Numbers, separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f"{option} = '{text[:80]}' is not a list of numbers: write for example 0.1,0.2") from None


def chosen_device(name: str | None) -> "torch.device":
    """The device of that name, checked by a small tensor; by default the accelerator, if there is one."""
    import torch

    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on meta, which holds no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"device '{name}' cannot be used: {reason}; leave --device out or give cpu") from error
    return device


def default_folder(stem: str, resume: bool) -> Path:
    """`runs/STEM` or `runs/STEM-N`: the first free one, or the last existing one to resume."""
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


@contextmanager
def resumable(display: Display, again: str) -> Iterator[Interrupt]:
    """On a signal, let the run save itself, print how to continue, and exit with the code that a shell expects.

    Args:
        display: Its bar is removed before anything is printed.
        again: The command that continues; see `RunOptions.resume_line`.
    """
    try:
        with catch_signals() as interrupt:
            yield interrupt
    except Interrupted as stop:
        display.__exit__()
        print(f"adagp: stopped, everything so far is saved; continue with:\n  {again}", file=sys.stderr)
        raise typer.Exit(128 + stop.signal_number) from None


def train_recipes(
    folders: Mapping[Path, Mapping[str, Recipe]], device: "torch.device", run: RunOptions, again: str
) -> dict[str, dict[str, Any]]:
    """Train the recipes of one folder after the other; those of a folder share their data and are interleaved.

    Args:
        folders: The recipes of each folder, by label.
        device: Where to train.
        run: Everything else that the command line says about running.
        again: The command that continues; see `RunOptions.resume_line`.

    Returns:
        The result of each run, by label.
    """
    from adagp.training.comparison.run_all import run_all

    results: dict[str, dict[str, Any]] = {}
    with Display(run.as_json) as display:
        for path, recipes in folders.items():
            first = next(iter(recipes.values()))
            dataset = data.load_any(first.data, run.data_root)
            with resumable(display, again) as interrupt:
                results |= run_all(
                    recipes,
                    dataset,
                    path,
                    threads=first.threads,
                    device=device,
                    session=Session(display, interrupt, run.checkpoint_seconds),
                    resume=run.resume,
                )
    return results
