"""`adagp reproduce`: the papers' tables, ours beside theirs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adagp import data
from adagp.cli import options
from adagp.cli.common import command, print_tables
from adagp.cli.display import Display
from adagp.cli.reproduce_accelerator import add_commands
from adagp.cli.reproduce_accuracy import quality_command, table_command
from adagp.cli.reproduce_hardware import hardware_table_command
from adagp.cli.reproduce_pipeline import figure_command, speed_up_command
from adagp.cli.runs import chosen_device, numbers, resumable, resume_line
from adagp.reproduce import pipeline
from adagp.training import RecipeError
from adagp.training.run.session import CHECKPOINT_SECONDS, Session

reproduce_app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True, help=__doc__)
for figure in pipeline.SCHEMES:
    reproduce_app.command(f"fig{figure}")(figure_command(figure))
reproduce_app.command("fig20")(speed_up_command)
for _table in (1, 2, 3):
    reproduce_app.command(f"table{_table}")(table_command(_table))
for _table in (4, 5):
    reproduce_app.command(f"table{_table}")(hardware_table_command(_table))
reproduce_app.command("predictor-quality")(quality_command)
add_commands(reproduce_app)


@reproduce_app.command("approximation-kernel")
@command
def kernel_command(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions; the median counts.")] = 15,
    layout: Annotated[str | None, typer.Option(help="Only one of contiguous, channels-last. Default: both.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: PyTorch's choice.")] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Table 1 of the gradient-approximation paper: the topk kernel against the dense weight gradient.

    Try:

    - `adagp reproduce approximation-kernel`: the paper's eight shapes, about a minute on two cores.
    """
    del debug
    import torch

    from adagp.reproduce import topk_kernel
    from adagp.training.environment import describe

    known = list(topk_kernel.LAYOUTS)
    if layout is not None and layout not in known:
        raise RecipeError(f"unknown layout '{layout}': choose one of {', '.join(known)}")
    if threads is not None:
        torch.set_num_threads(threads)
    with Display(as_json) as display:
        timings = topk_kernel.measure_table(rounds, [layout] if layout else known, display.on_message)
    here = describe(torch.device("cpu"), threads)
    table = topk_kernel.kernel_table(timings, f"{here['processor']}, {here['threads']} threads")
    print_tables([table], {"machine": here}, as_json)


@reproduce_app.command("approximation-accuracy")
@command
def accuracy_command(
    tables: Annotated[str, typer.Option(help="Which tables of the paper, comma-separated.")] = "2,3,4,5",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images; the paper: 200 to 500.")] = 4,
    train_limit: Annotated[int | None, typer.Option(min=1, help="Training images used; the paper: 50,000.")] = 20_000,
    test_limit: options.TestLimit = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated whole numbers.")] = "0",
    data_name: Annotated[str, typer.Option("--data", help="The data set; the paper's is cifar10.")] = "cifar10",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch; the paper's is 128.")] = 128,
    lr: Annotated[float, typer.Option(help="Adam's learning rate at the start; the paper gives none.")] = 1e-3,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: PyTorch's choice.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything that is written.")] = Path(
        "runs/approximation-accuracy"
    ),
    resume: options.Resume = False,
    device: options.Device = None,
    data_root: options.Root = None,
    checkpoint_seconds: options.Checkpoint = CHECKPOINT_SECONDS,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Tables 2 to 5 of the gradient-approximation paper: speed and accuracy of zero, random and topk.

    All runs take turns, epoch by epoch. Ctrl-C leaves everything resumable.

    Try:

    - `adagp reproduce approximation-accuracy --tables 3,5 --data-root DIR`: ResNet-20, three schedules, and ResNet-14.
    - `adagp reproduce approximation-accuracy --tables 4 --epochs 1 --train-limit 3840 --data-root DIR`: VGG-19.
    - `adagp reproduce approximation-accuracy --tables 3,5 --data-root DIR --resume`: after Ctrl-C or a crash.
    """
    del debug
    from adagp.reproduce import approximation
    from adagp.training.comparison.run_all import run_all
    from adagp.training.run.folder import make_folder, write_file

    chosen = numbers("tables", tables)
    chosen_seeds = numbers("seeds", seeds)
    fields: dict[str, Any] = {
        "data": data_name,
        "epochs": epochs,
        "train_limit": train_limit,
        "test_limit": test_limit,
        "batch_size": batch_size,
        "lr": lr,
        "threads": threads,
    }
    recipes = approximation.recipes(chosen, chosen_seeds, **fields)
    where = chosen_device(device)
    name = "reproduce approximation-accuracy"
    again = resume_line(name, out, device, data_root, as_json, tables=tables, seeds=seeds, **fields)
    with Display(as_json) as display:
        dataset = data.load(data_name, data_root)
        with resumable(display, again) as interrupt:
            results = run_all(
                recipes,
                dataset,
                out,
                threads=threads,
                device=where,
                session=Session(display, interrupt, checkpoint_seconds),
                resume=resume,
            )
    images = "all" if train_limit is None else f"{train_limit:,}"
    scale = f"{epochs} epoch{'s' if epochs > 1 else ''} of {images} images of {data_name}"
    shown = approximation.accuracy_tables(chosen, results, chosen_seeds, scale)
    make_folder(out)
    write_file(out / "tables.json", {"scale": scale, "tables": [table.plain() for table in shown], "runs": results})
    print_tables(shown, {"scale": scale, "folder": str(out), "runs": results}, as_json)
