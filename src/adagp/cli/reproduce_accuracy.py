"""`adagp reproduce table1|table2|table3|predictor-quality`: the ADA-GP paper's accuracy tables and figure 15."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagp import data
from adagp.cli import options
from adagp.cli.common import command, print_json, print_table
from adagp.cli.display import Display
from adagp.cli.runs import assignments, chosen_device, numbers, resumable, resume_line
from adagp.extras import require
from adagp.report import Table, to_csv, to_markdown
from adagp.reproduce import accuracy, quality
from adagp.reproduce.accuracy import CELLS
from adagp.training import RecipeError
from adagp.training.run.session import CHECKPOINT_SECONDS, Session

if TYPE_CHECKING:
    import torch

_SUMMARIES = {
    1: """Table 1: accuracy of image classifiers by backpropagation and by ADA-GP, the paper's beside ours.

    Both methods of a network take turns, epoch by epoch; networks follow one another. Ctrl-C leaves everything
    resumable.

    Try:

    - `adagp reproduce table1 --data-root DIR`: five networks at the scale of a processor, 90 minutes of one core.
    - `adagp reproduce table1 --cells cifar10-vgg16,cifar10-vgg19 --set epochs=10 --data-root DIR`: your choice.
    - `adagp reproduce table1 --data-root DIR --resume`: after Ctrl-C or a crash.
    """,
    2: """Table 2: a Transformer on Multi30k by backpropagation and by ADA-GP; token accuracy, loss, BLEU, seconds.

    Both methods take turns, epoch by epoch. Ctrl-C leaves everything resumable.

    Try:

    - `adagp reproduce table2 --data-root DIR`: the whole text, half an hour to an hour of one core.
    - `adagp reproduce table2 --kind paper --full --data-root DIR`: the paper's hyper-parameters, for a GPU.
    """,
    3: """Table 3: YOLO-v3 on Pascal VOC by backpropagation and by ADA-GP; class accuracy, mAP at IoU 0.5, seconds.

    Both methods take turns, epoch by epoch. Ctrl-C leaves everything resumable.

    Try:

    - `adagp reproduce table3 --data-root DIR`: small images and few epochs, about 20 minutes of one core.
    - `adagp reproduce table3 --full --data-root DIR`: images of 416 pixels and 100 epochs, for a GPU.
    """,
}


def table_command(table: int) -> Callable[..., None]:
    """The command that fills one of the paper's accuracy tables."""
    default = Path(f"runs/table{table}")

    def run(
        cells: Annotated[
            str, typer.Option(metavar="DATA-MODEL,...", help="What to train, in the order of the rows.")
        ] = ",".join(map(str, CELLS[table])),
        kind: Annotated[
            str, typer.Option(help="`tuned` hyper-parameters, or the `paper`'s, which need its many epochs.")
        ] = "tuned",
        full: Annotated[
            bool, typer.Option("--full", help="The presets' own epochs and data, not the scale of a processor.")
        ] = False,
        seeds: Annotated[str, typer.Option(help="Comma-separated whole numbers.")] = "0",
        set_: options.Set = None,
        threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: PyTorch's choice.")] = None,
        out: Annotated[Path, typer.Option(help="Folder for everything that is written.")] = default,
        resume: options.Resume = False,
        device: options.Device = None,
        data_root: options.Root = None,
        checkpoint_seconds: options.Checkpoint = CHECKPOINT_SECONDS,
        as_json: options.Json = False,
        debug: options.Debug = False,
    ) -> None:
        del debug
        from adagp.report.curves import Curve, curves_png
        from adagp.training.comparison.run_all import run_all

        chosen, chosen_seeds = accuracy.parse_cells(table, cells), numbers("seeds", seeds)
        changes = assignments(set_, threads=threads)
        recipes = {cell: accuracy.recipes(cell, kind, chosen_seeds, full=full, changes=changes) for cell in chosen}
        where = chosen_device(device)
        require("matplotlib")  # for the picture, which comes last
        again = resume_line(
            *(f"reproduce table{table}", out, device, data_root, as_json),
            cells=cells,
            kind=kind,
            full=full,
            seeds=seeds,
            threads=threads,
            set=set_,
        )
        results: dict[str, dict[str, Any]] = {}
        with Display(as_json) as display:
            for cell, of_cell in recipes.items():
                dataset = data.load_any(cell.data, data_root)
                with resumable(display, again) as interrupt:
                    results |= run_all(
                        of_cell,
                        dataset,
                        out / str(cell),
                        threads=next(iter(of_cell.values())).threads,
                        device=where,
                        session=Session(display, interrupt, checkpoint_seconds),
                        resume=resume,
                    )
        every = {name: recipe for of_cell in recipes.values() for name, recipe in of_cell.items()}
        notes = accuracy.scale_notes(every, chosen_seeds, _machine(where, threads))
        shown = accuracy.table(table, chosen, results, chosen_seeds, notes)
        metric = accuracy.metric(table)
        panels = {
            str(cell): [Curve(results[name]["method"], results[name]["scores"]) for name in of_cell]
            for cell, of_cell in recipes.items()
        }
        _write(out, f"table{table}", shown, curves_png(panels, metric))
        _tell(shown, as_json, {"folder": str(out), "notes": list(notes), "runs": results})

    run.__doc__ = _SUMMARIES[table]
    return command(run)


@command
def quality_command(
    run: Annotated[
        Path | None, typer.Option(help="Draw what this folder of a run with predictions holds, and train nothing.")
    ] = None,
    method: Annotated[str, typer.Option(help="adagp, or adagp-paper for the paper's own predictor.")] = "adagp",
    set_: options.Set = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: PyTorch's choice.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything that is written.")] = Path("runs/predictor-quality"),
    resume: options.Resume = False,
    device: options.Device = None,
    data_root: options.Root = None,
    checkpoint_seconds: options.Checkpoint = CHECKPOINT_SECONDS,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Figure 15: MAPE and MSE of the predictions in each layer of VGG-13 over the epochs, with cosine and norm ratio.

    Try:

    - `adagp reproduce predictor-quality --data-root DIR`: trains VGG-13 on a part of CIFAR-10, about five minutes.
    - `adagp reproduce predictor-quality --method adagp-paper --data-root DIR`: with the paper's own predictor.
    - `adagp reproduce predictor-quality --run runs/table1/cifar10-vgg13/cifar10-vgg13-adagp-seed-0`: from a run.
    """
    del debug
    from adagp.report.curves import quality_png
    from adagp.training import RunFolder
    from adagp.training.comparison.run_all import run_all
    from adagp.training.run.folder import make_folder

    if run is None:
        changes = assignments(set_, threads=threads)
        recipe = quality.recipe(method, changes)
        name = f"{recipe.model} {method}"
        where = chosen_device(device)
        require("matplotlib")  # for the picture, which comes last
        again = resume_line(
            *("reproduce predictor-quality", out, device, data_root, as_json),
            method=method,
            set=set_,
            threads=threads,
        )
        with Display(as_json) as display:
            dataset = data.load_any(recipe.data, data_root)
            with resumable(display, again) as interrupt:
                run_all(
                    {name: recipe},
                    dataset,
                    out,
                    threads=recipe.threads,
                    device=where,
                    session=Session(display, interrupt, checkpoint_seconds),
                    resume=resume,
                )
        run = out / name.replace(" ", "-")
    elif set_:
        raise RecipeError("--set would change nothing of the run in --run: leave one of them out")
    epochs = quality.of_run(run)
    shown = quality.table(RunFolder(run).recipe(), epochs)
    make_folder(out)
    _write(out, "predictor-quality", shown, quality_png(epochs, shown.title), quality.every_epoch(epochs))
    _tell(shown, as_json, {"folder": str(out), "run": str(run), "epochs": epochs})


def _machine(device: "torch.device", threads: int | None) -> str:
    from adagp.training.environment import describe

    here = describe(device, threads)
    return f"{here['device_name']}, {here['threads']} thread{'s' if here['threads'] > 1 else ''}"


def _write(out: Path, stem: str, table: Table, picture: bytes, details: Table | None = None) -> None:
    """Write a table as Markdown and, in all its details if there are more, as CSV, and its picture."""
    from adagp.training.run.folder import write_file

    write_file(out / f"{stem}.csv", to_csv(details or table).encode())
    write_file(out / f"{stem}.md", to_markdown(table).encode())
    write_file(out / f"{stem}.png", picture)


def _tell(table: Table, as_json: bool, facts: dict[str, Any]) -> None:
    if as_json:
        print_json({"tables": [table.plain()], **facts})
        return
    print_table(table)
    print(f"written to {facts['folder']}")
