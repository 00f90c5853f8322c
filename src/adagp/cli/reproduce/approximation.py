"""`adagp reproduce approximation-kernel` and `approximation-accuracy`: the gradient-approximation paper's tables."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adagp.cli import options
from adagp.cli.common import check_pictures, command, print_tables
from adagp.cli.display import Display
from adagp.cli.session import RunOptions, chosen_device, numbers, train_recipes
from adagp.files import write_bytes
from adagp.report.plot import picture_format
from adagp.training import RecipeError


@command
def kernel_command(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions; the median counts.")] = 15,
    layout: Annotated[str | None, typer.Option(help="Only one of contiguous, channels-last. Default: both.")] = None,
    threads: options.Threads = None,
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


@command
@options.spread
def accuracy_command(
    *,
    tables: Annotated[str, typer.Option(help="Which tables of the paper, comma-separated.")] = "2,3,4,5",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images; the paper: 200 to 500.")] = 4,
    train_limit: Annotated[int | None, typer.Option(min=1, help="Training images used; the paper: 50,000.")] = 20_000,
    test_limit: options.TestLimit = None,
    seeds: options.Seeds = "0",
    data_name: Annotated[str, typer.Option("--data", help="The data set; the paper's is cifar10.")] = "cifar10",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch; the paper's is 128.")] = 128,
    lr: Annotated[float, typer.Option(help="Adam's learning rate at the start; the paper gives none.")] = 1e-3,
    threads: options.Threads = None,
    out: options.Folder = Path("runs/approximation-accuracy"),
    picture: options.Picture = None,
    run_options: RunOptions,
) -> None:
    """Tables 2 to 5 of the gradient-approximation paper: speed and accuracy of zero, random and topk.

    All runs take turns, epoch by epoch. Ctrl-C leaves everything resumable. `--picture` draws figures 5 to 8: training
    loss and accuracy over the epochs.

    Try:

    - `adagp reproduce approximation-accuracy --tables 3,5 --data-root DIR`: ResNet-20, three schedules, and ResNet-14.
    - `adagp reproduce approximation-accuracy --tables 4 --epochs 1 --train-limit 3840 --data-root DIR`: VGG-19.
    - `adagp reproduce approximation-accuracy --tables 3,5 --data-root DIR --resume`: after Ctrl-C or a crash.
    """
    from adagp.reproduce import approximation
    from adagp.training.run.folder import make_folder, write_file

    check_pictures(picture)
    chosen, chosen_seeds = numbers("tables", tables), numbers("seeds", seeds)
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
    again = run_options.resume_line(
        "reproduce approximation-accuracy", out, tables=tables, seeds=seeds, picture=picture, **fields
    )
    results = train_recipes({out: recipes}, chosen_device(run_options.device), run_options, again)
    scale = approximation.scale(epochs, train_limit, data_name)
    shown = approximation.accuracy_tables(chosen, results, chosen_seeds, scale)
    make_folder(out)
    if picture is not None:
        write_bytes(picture, approximation.curves(chosen, results, chosen_seeds, picture_format(picture)))
    write_file(out / "tables.json", {"scale": scale, "tables": [table.plain() for table in shown], "runs": results})
    print_tables(shown, {"scale": scale, "folder": str(out), "runs": results}, run_options.as_json)
