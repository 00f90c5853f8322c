"""`adagp reproduce table1|table2|table3|predictor-quality`: the ADA-GP paper's accuracy tables and figure 15."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp.cli import options
from adagp.cli.common import command, print_tables
from adagp.cli.session import RunOptions, assignments, chosen_device, numbers, train_recipes
from adagp.extras import require
from adagp.report.table import Table, to_csv, to_markdown
from adagp.reproduce import accuracy, quality
from adagp.reproduce.accuracy import CELLS
from adagp.training import RecipeError

if TYPE_CHECKING:
    import torch

_HELP = {
    1: """Table 1 of the ADA-GP paper: accuracy of image classifiers by backpropagation and by ADA-GP.

    Both methods of a network take turns, epoch by epoch; networks follow one another. Ctrl-C leaves everything
    resumable.

    Try:

    - `adagp reproduce table1 --data-root DIR`: five networks at the scale of a processor, 90 minutes of one core.
    - `adagp reproduce table1 --cells cifar10-vgg16,cifar10-vgg19 --set epochs=10 --data-root DIR`: your choice.
    - `adagp reproduce table1 --data-root DIR --resume`: after Ctrl-C or a crash.
    """,
    2: """Table 2 of the ADA-GP paper: a Transformer on Multi30k; token accuracy, loss, BLEU, seconds.

    Backpropagation and ADA-GP take turns, epoch by epoch. Ctrl-C leaves everything resumable.

    Try:

    - `adagp reproduce table2 --data-root DIR`: the whole text, half an hour to an hour of one core.
    - `adagp reproduce table2 --kind paper --full --data-root DIR`: the paper's hyper-parameters, for a GPU.
    """,
    3: """Table 3 of the ADA-GP paper: YOLO-v3 on Pascal VOC; class accuracy, mAP at IoU 0.5, seconds.

    Backpropagation and ADA-GP take turns, epoch by epoch. Ctrl-C leaves everything resumable.

    Try:

    - `adagp reproduce table3 --data-root DIR`: small images and few epochs, about 20 minutes of one core.
    - `adagp reproduce table3 --full --data-root DIR`: images of 416 pixels and 100 epochs, for a GPU.
    """,
}


def _table_command(table: int) -> Callable[..., None]:
    default = Path(f"runs/table{table}")

    def run(
        *,
        cells: Annotated[
            str, typer.Option(metavar="DATA-MODEL,...", help="What to train, in the order of the rows.")
        ] = ",".join(map(str, CELLS[table])),
        kind: Annotated[
            str, typer.Option(help="`tuned` hyper-parameters, or the `paper`'s, which need its many epochs.")
        ] = "tuned",
        full: Annotated[
            bool, typer.Option("--full", help="The presets' own epochs and data, not the scale of a processor.")
        ] = False,
        seeds: options.Seeds = "0",
        set_: options.Set = None,
        threads: options.Threads = None,
        out: options.Folder = default,
        run_options: RunOptions,
    ) -> None:
        chosen, chosen_seeds = accuracy.parse_cells(table, cells), numbers("seeds", seeds)
        changes = assignments(set_, threads=threads)
        recipes = {cell: accuracy.recipes(cell, kind, chosen_seeds, full=full, changes=changes) for cell in chosen}
        device = chosen_device(run_options.device)
        require("matplotlib")  # for the picture, which comes last
        repeated = {"cells": cells, "kind": kind, "full": full, "seeds": seeds, "threads": threads, "set": set_}
        again = run_options.resume_line(f"reproduce table{table}", out, **repeated)
        folders = {out / str(cell): of_cell for cell, of_cell in recipes.items()}
        results = train_recipes(folders, device, run_options, again)
        every = {name: recipe for of_cell in recipes.values() for name, recipe in of_cell.items()}
        notes = accuracy.scale_notes(every, chosen_seeds, _machine(device, threads))
        shown = accuracy.table(table, chosen, results, chosen_seeds, notes)
        _write(out, f"table{table}", shown, accuracy.curves(table, recipes, results))
        _print(shown, run_options.as_json, {"folder": str(out), "notes": list(notes), "runs": results})

    run.__doc__ = _HELP[table]
    return command(options.spread(run))


table1_command, table2_command, table3_command = (_table_command(table) for table in (1, 2, 3))


@command
@options.spread
def quality_command(
    *,
    run: Annotated[
        Path | None, typer.Option(help="Draw what this folder of a run with predictions holds, and train nothing.")
    ] = None,
    method: Annotated[str, typer.Option(help="adagp, or adagp-paper for the paper's own predictor.")] = "adagp",
    set_: options.Set = None,
    threads: options.Threads = None,
    out: options.Folder = Path("runs/predictor-quality"),
    run_options: RunOptions,
) -> None:
    """Figure 15 of the ADA-GP paper: MAPE and MSE of the predictions in each layer of VGG-13, over the epochs.

    Cosine and norm ratio, which the paper does not show, say whether applying a prediction helps.

    Try:

    - `adagp reproduce predictor-quality --data-root DIR`: trains VGG-13 on a part of CIFAR-10, about five minutes.
    - `adagp reproduce predictor-quality --method adagp-paper --data-root DIR`: with the paper's own predictor.
    - `adagp reproduce predictor-quality --run runs/table1/cifar10-vgg13/cifar10-vgg13-adagp-seed-0`: from a run.
    """
    from adagp.report.comparison_plots import quality_png
    from adagp.training import RunFolder
    from adagp.training.run.folder import make_folder

    if run is None:
        recipe = quality.recipe(method, assignments(set_, threads=threads))
        name = f"{recipe.model} {method}"
        device = chosen_device(run_options.device)
        require("matplotlib")  # for the picture, which comes last
        repeated = {"method": method, "set": set_, "threads": threads}
        again = run_options.resume_line("reproduce predictor-quality", out, **repeated)
        train_recipes({out: {name: recipe}}, device, run_options, again)
        run = out / name.replace(" ", "-")
    elif set_:
        raise RecipeError("--set would change nothing of the run in --run: leave one of them out")
    epochs = quality.of_run(run)
    shown = quality.table(RunFolder(run).recipe(), epochs)
    make_folder(out)
    _write(out, "predictor-quality", shown, quality_png(epochs, shown.title), quality.every_epoch(epochs))
    _print(shown, run_options.as_json, {"folder": str(out), "run": str(run), "epochs": epochs})


def _machine(device: "torch.device", threads: int | None) -> str:
    from adagp.training.environment import describe

    here = describe(device, threads)
    return f"{here['device_name']}, {here['threads']} thread{'s' if here['threads'] > 1 else ''}"


def _write(out: Path, stem: str, table: Table, picture: bytes, details: Table | None = None) -> None:
    """Write a table as Markdown and CSV, and its picture; the CSV holds `details` if there are any."""
    from adagp.training.run.folder import write_file

    write_file(out / f"{stem}.csv", to_csv(details or table).encode())
    write_file(out / f"{stem}.md", to_markdown(table).encode())
    write_file(out / f"{stem}.png", picture)


def _print(table: Table, as_json: bool, facts: dict[str, Any]) -> None:
    print_tables([table], facts, as_json)
    if not as_json:
        print(f"written to {facts['folder']}")
