"""The `adagp` command: parses, calls, prints. Progress and errors go to stderr, results to stdout."""

import functools
import json
import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from adagp import AdaGP, data, models, schedules
from adagp.report import Table, comparison_table, schedule_table, write_report
from adagp.training import (
    EpochRecord,
    Interrupted,
    Preset,
    Recipe,
    RecipeError,
    Run,
    RunFolder,
    RunFolderError,
    Settings,
    TrainingError,
    compare,
    load_preset,
    load_recipe,
    methods,
    preset_names,
    train,
)
from adagp.training.compare import stored_settings
from adagp.training.files import strict
from adagp.training.interrupt import catch_signals
from adagp.training.observers import BatchEvent, Observer, Several
from adagp.training.recipe import parse_assignment
from adagp.training.runfolder import CHECKPOINT_SECONDS
from adagp.training.tensorboard import TensorBoard

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="adagp",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train PyTorch models with adaptive gradient prediction, and see honestly what it gives.

Start with `adagp compare --preset demo`: two minutes, no download, every method side by side.
""",
)
_errors = Console(stderr=True, highlight=False)


_METHODS_HELP = "Methods:\n\n" + "\n".join(
    f"- `{line.replace(': ', '`: ', 1)}." for line in methods.summary().splitlines()
)
_PRESETS_HELP = "Presets:\n\n" + "\n".join(f"- `{name}`: {load_preset(name).about}." for name in preset_names())


def main() -> None:
    """Entry point of the `adagp` command."""
    app()


# ---- options that commands share

PresetOption = Annotated[str | None, typer.Option(help=f"Start from a shipped recipe: {', '.join(preset_names())}.")]
RecipeOption = Annotated[Path | None, typer.Option("--recipe", help="Start from a recipe file, TOML or JSON.")]
ModelOption = Annotated[str | None, typer.Option(help="The model; `adagp models` lists them.")]
DataOption = Annotated[str | None, typer.Option("--data", help="The data set; `adagp data` lists them.")]
EpochsOption = Annotated[int | None, typer.Option(help="Passes over the training images.")]
BatchOption = Annotated[int | None, typer.Option(help="Images per batch.")]
LrOption = Annotated[float | None, typer.Option(help="Learning rate at the start.")]
TrainLimitOption = Annotated[int | None, typer.Option(help="Use only so many training images.")]
TestLimitOption = Annotated[int | None, typer.Option(help="Use only so many test images.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set any other recipe field; may be repeated."),
]
OutOption = Annotated[Path | None, typer.Option(help="Folder for everything the run writes. Default: below runs/.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in the folder.")]
DeviceOption = Annotated[str | None, typer.Option(help="Where to train. Default: the accelerator, if there is one.")]
RootOption = Annotated[Path | None, typer.Option(help="Folder of data sets on disk. Default: ADAGP_DATA.")]
CheckpointOption = Annotated[
    float, typer.Option(min=0, help="Save at least this often, in seconds, beside the end of every epoch.")
]
TensorBoardOption = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug messages.")]


def _command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn errors into one line and an exit code: 2 when the input is wrong, 1 when the work failed."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        debug = bool(kwargs.get("debug"))
        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("adagp").setLevel(logging.DEBUG if debug else logging.WARNING)
        try:
            return function(*args, **kwargs)
        except RecipeError as error:
            _fail(error, 2, debug)
        except (TrainingError, data.MissingDataError, data.CorruptDataError, OSError) as error:
            _fail(error, 1, debug)
        raise AssertionError("unreachable")

    return wrapped


def _fail(error: Exception, code: int, debug: bool) -> None:
    if debug:
        raise error
    text = (
        str(error)
        if isinstance(error, TrainingError) or not isinstance(error, OSError) or not error.strerror
        else (f"{error.filename}: {error.strerror}")
    )
    print(f"adagp: error: {text}", file=sys.stderr)
    raise typer.Exit(code)


# ---- train


@app.command("train", epilog=f"{_METHODS_HELP}\n\n{_PRESETS_HELP}")
@_command
def train_command(
    preset: PresetOption = None,
    recipe_file: RecipeOption = None,
    method: Annotated[str | None, typer.Option(help=f"One of {', '.join(methods.names())}.")] = None,
    model: ModelOption = None,
    data_name: DataOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    lr: LrOption = None,
    seed: Annotated[int | None, typer.Option(help="Decides initial weights and the order of images.")] = None,
    train_limit: TrainLimitOption = None,
    test_limit: TestLimitOption = None,
    set_: SetOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    device: DeviceOption = None,
    data_root: RootOption = None,
    checkpoint_seconds: CheckpointOption = CHECKPOINT_SECONDS,
    tensorboard: TensorBoardOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train one model by one method, resumably.

    Try:

    - `adagp train`: a small CNN on MNIST-5k by ADA-GP.
    - `adagp train --method bp --epochs 3 --lr 0.01`: plain backpropagation.
    - `adagp train --preset cifar10-resnet20-tuned --data-root DIR --set predictor=paper`: any recipe field can be set.
    - `adagp train --out runs/mine --resume`: after Ctrl-C or a crash, continues bit for bit.
    """
    del debug
    given = _given(
        method=method,
        model=model,
        data=data_name,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        train_limit=train_limit,
        test_limit=test_limit,
    ) | _assignments(set_)
    fresh = preset is None and recipe_file is None and not given
    if resume and out is not None and fresh:
        recipe = RunFolder(out).recipe()
    else:
        recipe = Recipe.from_mapping(given, _base(preset, recipe_file).recipe)
    if recipe.predictor is not None and methods.get(recipe.method).predictor is None:
        raise RecipeError(
            f"predictor = {recipe.predictor} would change nothing: method {recipe.method} predicts nothing"
        )
    if recipe.method == "short-bp" and recipe.steps is None:
        raise RecipeError(
            "method short-bp gets its length from ADA-GP's measured time: use `adagp compare`, or give --set steps=N"
        )
    path = out or _default_folder(f"{recipe.data}-{recipe.model}-{recipe.method}-seed{recipe.seed}", resume)
    where = _device(device)
    again = _resume_line("train", path, device, data_root, as_json, tensorboard)
    with catch_signals() as interrupt, _Display(as_json) as display:
        dataset = data.load(recipe.data, data_root)
        folder = RunFolder(path)
        run = Run(recipe, dataset, device=where)
        folder.prepare(recipe, where, resume=resume)
        if resume and folder.restore(run):
            display.on_message(f"resuming {run.name} at batch {run.step_index} of {run.total_steps}")
        display.on_message(_ladder_line(run))
        observer = Several(display, TensorBoard(path / "tensorboard")) if tensorboard else display
        try:
            result = train(run, folder, observer=observer, interrupt=interrupt, checkpoint_seconds=checkpoint_seconds)
        except Interrupted as stop:
            raise _stopped(stop, again, display) from None
    if as_json:
        _print_json({"folder": str(path), "recipe": recipe.to_dict(), **result})
        return
    _print_table(
        Table(
            title=run.name,
            columns=("accuracy %", "test loss", "train s", "median ms per batch", "updates applied"),
            rows=[
                (
                    f"{100 * result['test_accuracy']:.2f}",
                    f"{result['test_loss']:.4f}",
                    f"{result['train_seconds']:.1f}",
                    ", ".join(f"{phase} {ms:.1f}" for phase, ms in result["median_ms"].items()),
                    ", ".join(f"{source} {count}" for source, count in result["counts"].items()),
                )
            ],
            text_columns=0,
        )
    )
    _print_reasons(result["reasons"])
    print(f"written to {path}")


# ---- compare


@app.command("compare", epilog=f"{_METHODS_HELP}\n\n{_PRESETS_HELP}")
@_command
def compare_command(
    preset: PresetOption = None,
    recipe_file: RecipeOption = None,
    methods_: Annotated[str | None, typer.Option("--methods", help="Comma-separated; see below.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated whole numbers, for example 0,1,2.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Give every method this many training seconds instead of the same epochs.")
    ] = None,
    model: ModelOption = None,
    data_name: DataOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    lr: LrOption = None,
    train_limit: TrainLimitOption = None,
    test_limit: TestLimitOption = None,
    set_: SetOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    device: DeviceOption = None,
    data_root: RootOption = None,
    checkpoint_seconds: CheckpointOption = CHECKPOINT_SECONDS,
    tensorboard: TensorBoardOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train several methods over several seeds, interleaved, and judge them.

    All runs of a comparison take turns in one process, so whatever slows the machine down slows down all of them.
    Costs of a batch are measured first; `short-bp` gets as many batches as fit into ADA-GP's time.

    Try:

    - `adagp compare --preset demo`: about two minutes, no download.
    - `adagp compare --methods bp,adagp,skip,short-bp --seeds 0,1,2 --data digits --epochs 9`: your own choice.
    - `adagp compare --preset cifar10-resnet20-tuned --data-root DIR --budget 600`: the same ten minutes for each run.
    - `adagp compare --preset demo --resume`: after Ctrl-C or a crash.
    """
    del debug
    given = _given(
        model=model,
        data=data_name,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        train_limit=train_limit,
        test_limit=test_limit,
    ) | _assignments(set_)
    for field, remedy in (("method", "--methods"), ("seed", "--seeds")):
        if field in given:
            raise RecipeError(f"{field} is set for each run of a comparison: choose with {remedy}")
    if budget is not None and "epochs" in given:
        raise RecipeError("epochs and --budget both set the length: give one of them")
    base = _base(preset, recipe_file)
    fresh = preset is None and recipe_file is None and not given and not methods_ and not seeds and budget is None
    if resume and out is not None and fresh:
        settings = stored_settings(out)
    else:
        settings = Settings(
            recipe=Recipe.from_mapping(given, base.recipe).replace(method="bp", seed=0),
            methods=tuple(part.strip() for part in methods_.split(",")) if methods_ else base.methods,
            seeds=_numbers(seeds) if seeds else base.seeds,
            budget_seconds=budget,
        )
    stem = base.name if preset or recipe_file else f"{settings.recipe.data}-{settings.recipe.model}"
    path = out or _default_folder(f"compare-{stem}", resume)
    where = _device(device)
    again = _resume_line("compare", path, device, data_root, as_json, tensorboard)
    with catch_signals() as interrupt, _Display(as_json) as display:
        dataset = data.load(settings.recipe.data, data_root)
        observer = Several(display, TensorBoard(path / "tensorboard")) if tensorboard else display
        try:
            comparison = compare(
                settings,
                dataset,
                path,
                device=where,
                observer=observer,
                interrupt=interrupt,
                resume=resume,
                checkpoint_seconds=checkpoint_seconds,
            )
        except Interrupted as stop:
            raise _stopped(stop, again, display) from None
        png, html = write_report(comparison, path)
    if as_json:
        _print_json({"folder": str(path), "figure": str(png), "report": str(html), **comparison.to_dict()})
        return
    _print_table(comparison_table(comparison))
    console = Console(highlight=False)
    console.print(f"\n[bold]{escape(comparison.verdict)}[/bold]\n")
    print(f"picture: {png}\nreport:  {html}")


# ---- schedule, models, data


@app.command("schedule")
@_command
def schedule_command(
    method: Annotated[str, typer.Option(help=f"One of {', '.join(methods.names())}.")] = "adagp",
    epochs: Annotated[int, typer.Option(min=1, help="Length of the run.")] = 90,
    steps_per_epoch: Annotated[int, typer.Option(min=1, help="Batches in an epoch.")] = 390,
    warmup_epochs: Annotated[float | None, typer.Option(help="Default: the paper's 10, shortened to fit.")] = None,
    rung_epochs: Annotated[float | None, typer.Option(help="Default: the paper's 4, shortened to fit.")] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show which batches a method trains by backpropagation and which it predicts.

    Try:

    - `adagp schedule`: the paper's ladder over 90 epochs.
    - `adagp schedule --epochs 6 --steps-per-epoch 125`: the ladder compressed to a short run.
    """
    del debug
    recipe = Recipe.from_mapping(
        {"method": method, "epochs": epochs, "warmup_epochs": warmup_epochs, "rung_epochs": rung_epochs}
    )
    chosen = methods.get(method)
    if chosen.adaptive:
        raise RecipeError(
            "the adaptive schedule depends on what it measures: train with it: "
            "`adagp train --method adaptive` prints its reasons and keeps them in metrics.json"
        )
    ladder = recipe.ladder(epochs * steps_per_epoch, steps_per_epoch)
    schedule = chosen.schedule(ladder.warmup_steps, ladder.rung_steps, steps_per_epoch)
    table = schedule_table(f"{method}: {chosen.summary}", schedule, epochs, steps_per_epoch)
    if as_json:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        _print_json({"method": method, "epochs": rows, "notes": list(table.notes)})
    else:
        _print_table(table)


@app.command("models")
@_command
def models_command(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the models, their size, and how much of them predictions can cover.

    Try:

    - `adagp models`: a table.
    - `adagp train --model resnet14`: train one of them.
    """
    del debug
    rows: list[dict[str, Any]] = []
    for name in models.names():
        model = models.build(name)
        gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.always_backprop(), predictor=None)
        covered = [row for row in gp.coverage().rows if row.covered]
        rows.append(
            {
                "model": name,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "covered_layers": len(covered),
                "covered_share": gp.coverage().share,
            }
        )
    if as_json:
        _print_json({"models": rows})
        return
    cells = [
        (row["model"], f"{row['parameters']:,}", str(row["covered_layers"]), f"{100 * row['covered_share']:.1f}")
        for row in rows
    ]
    _print_table(
        Table("Models (10 classes, 3 channels)", ("model", "parameters", "covered layers", "covered %"), cells)
    )


@app.command("data")
@_command
def data_command(data_root: RootOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the data sets, and for those that are not there, where they are expected.

    Try:

    - `adagp data --data-root DIR`: with the data sets in a folder of yours.
    - `adagp train --data digits`: train on one of them.
    """
    del debug
    rows: list[dict[str, Any]] = []
    for name in data.names():
        try:
            dataset = data.load(name, data_root)
        except (data.MissingDataError, data.CorruptDataError) as error:
            rows.append({"data": name, "available": False, "reason": str(error)})
            continue
        rows.append(
            {
                "data": name,
                "available": True,
                "train_images": len(dataset.train.labels),
                "test_images": len(dataset.test.labels),
                "shape": [dataset.channels, dataset.size, dataset.size],
                "classes": dataset.num_classes,
            }
        )
    if as_json:
        _print_json({"data": rows})
        return
    there = [
        (row["data"], f"{row['train_images']:,}", f"{row['test_images']:,}", " x ".join(map(str, row["shape"])))
        for row in rows
        if row["available"]
    ]
    _print_table(Table("Data sets", ("data", "training images", "test images", "shape"), there))
    for row in rows:
        if not row["available"]:
            print(f"{row['data']} is not available: {row['reason']}")


# ---- helpers


class _Display(Observer):
    """Progress on stderr: a bar on a terminal, a line per epoch elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal
        self._quiet = quiet and not self._live
        self._accuracy: dict[str, float] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TaskProgressColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            disable=not self._live,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> "_Display":
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def on_start(self, runs: Sequence[Run]) -> None:
        """The bar counts the batches of all runs."""
        total, done = sum(run.total_steps for run in runs), sum(run.step_index for run in runs)
        self._progress.reset(self._task, total=total, completed=done)

    def on_batch(self, run: Run, event: BatchEvent) -> None:
        """Loss, phase, k:m, and the last accuracy of this run."""
        if self._live:
            accuracy = self._accuracy.get(run.name)
            known = "" if accuracy is None else f" acc {100 * accuracy:.1f} %"
            loss = "" if event.loss is None else f" loss {event.loss:.3f}"
            phase = event.phase if event.note in ("warm-up", event.phase) else f"{event.phase} {event.note}"
            epoch = min(event.step // run.steps_per_epoch + 1, run.total_epochs)
            text = f"{run.name} {epoch}/{run.total_epochs} {phase}{loss}{known}"
            self._progress.update(self._task, advance=1, description=text)

    def on_epoch(self, run: Run, record: EpochRecord) -> None:
        """A line per epoch."""
        self._accuracy[run.name] = record.test_accuracy
        if not self._quiet:
            self._console.print(
                f"{run.name:<18} epoch {record.epoch:>3}/{run.total_epochs}  loss {record.train_loss:.4f}  "
                f"accuracy {100 * record.test_accuracy:.2f} %  {record.train_seconds:.1f} s",
                soft_wrap=True,
            )

    def on_message(self, text: str) -> None:
        """A line of its own."""
        if not self._quiet:
            self._console.print(text, soft_wrap=True, markup=False)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _assignments(texts: list[str] | None) -> dict[str, Any]:
    return dict(parse_assignment(text) for text in texts or [])


def _base(preset: str | None, recipe_file: Path | None) -> Preset:
    if preset is not None and recipe_file is not None:
        raise RecipeError("--preset and --recipe both name a recipe: give one of them")
    if recipe_file is not None:
        return load_recipe(recipe_file)
    return load_preset(preset or "demo")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f"seeds = '{text}' is not a list of whole numbers: write for example 0,1,2") from None


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"device '{name}' cannot be used: {reason}; leave --device out or give cpu") from error
    return device


def _default_folder(stem: str, resume: bool) -> Path:
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


def _resume_line(
    command: str, path: Path, device: str | None, root: Path | None, as_json: bool, tensorboard: bool
) -> str:
    words = ["adagp", command, "--out", str(path), "--resume"]
    words += ["--device", device] if device else []
    words += ["--data-root", str(root)] if root else []
    words += ["--json"] if as_json else []
    words += ["--tensorboard"] if tensorboard else []
    return shlex.join(words)


def _stopped(stop: Interrupted, again: str, display: _Display) -> typer.Exit:
    display.__exit__()
    print(f"adagp: stopped, everything so far is saved; continue with:\n  {again}", file=sys.stderr)
    return typer.Exit(128 + stop.signal_number)


def _ladder_line(run: Run) -> str:
    if methods.get(run.recipe.method).source is None:
        return f"{run.name}: {run.total_steps} batches, all by backpropagation"
    warmup, rung = run.ladder.warmup_steps / run.steps_per_epoch, run.ladder.rung_steps / run.steps_per_epoch
    text = f"{run.name}: {run.total_steps} batches, warm-up {warmup:.2g} epochs"
    if methods.get(run.recipe.method).adaptive:
        return f"{text}, then as the measured quality allows"
    return f"{text}, then 4:1, 3:1, 2:1 for {rung:.2g} epochs each, then 1:1"


def _print_table(table: Table) -> None:
    rich = RichTable(title=escape(table.title), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    rich.padding = (0, 1, 0, 0)
    for place, column in enumerate(table.columns):
        rich.add_column(escape(column), justify="left" if place < table.text_columns else "right")
    for row in table.rows:
        rich.add_row(*(escape(cell) for cell in row))
    console = Console(highlight=False)
    console.print(rich)
    for note in table.notes:
        console.print(f"  {note}", style="dim", markup=False)


def _print_reasons(reasons: list[str], most: int = 10) -> None:
    """The last changes of an adaptive schedule; metrics.json has them all."""
    if reasons:
        left_out = f", the last {most} of {len(reasons)}" if len(reasons) > most else ""
        print("\n".join([f"changes of k:m{left_out}:", *(f"  {reason}" for reason in reasons[-most:])]))


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(strict(value), allow_nan=False))
