"""`adagp leaderboard`: what comparisons under the budget protocol show, as tables, pictures and a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagp.cli import options
from adagp.cli.common import InputError, command, print_json, print_table
from adagp.extras import require

if TYPE_CHECKING:
    from adagp.training.budget.result import BudgetResult


@command
def leaderboard_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders that `adagp compare --protocol budget --out` wrote.", show_default=False),
    ],
    page: Annotated[
        Path | None, typer.Option(help="Write a Markdown page to this file, its pictures next to it.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show which method reaches plain backpropagation's score soonest, from run folders.

    Nothing is trained. A comparison that is still running is shown as far as it has come. The first table has one row
    for each folder. Then comes one table for each, the soonest method first. A claim takes 5 paired seeds; with 3 or 4
    a row says "so far", with fewer that they are too few.

    Try:

    - `adagp compare --preset leaderboard-scratch --protocol budget --out runs/scratch`: makes a folder, in a night.
    - `adagp leaderboard runs/scratch`: while it runs, or later.
    - `adagp leaderboard runs/scratch runs/finetuning --page docs/leaderboard.md`: a page with pictures.
    - `adagp leaderboard runs/scratch --json`: every figure, for programs.
    """
    del debug  # `command` reads it
    from adagp.report.leaderboard import head_table, method_table, notes_line

    results = _results(runs)
    written = [] if page is None else _write_page(page, runs, results)
    if as_json:
        comparisons = [{"folder": str(path), **result.to_dict()} for path, result in zip(runs, results, strict=True)]
        print_json({"comparisons": comparisons, "files": [str(path) for path in written]})
        return
    print_table(head_table(results))
    for result in results:
        print()
        print_table(method_table(result))
        print(notes_line(result))
    for path in written:
        print(f"written: {path}")


def _results(runs: list[Path]) -> "list[BudgetResult]":
    from adagp.training.budget.result import read_result

    if len({path.resolve() for path in runs}) < len(runs):
        raise InputError("a folder is named twice: name each once")
    require("scipy")
    results = [read_result(path) for path in runs]
    for path, result in zip(runs, results, strict=True):
        if not result.methods:
            raise InputError(
                f"'{path}' has no run of the whole budget yet: continue it by `adagp compare --out {path} --resume`"
            )
    return results


def _write_page(page: Path, runs: list[Path], results: "list[BudgetResult]") -> list[Path]:
    from adagp.cli.common import check_folders, write_text
    from adagp.files import write_bytes
    from adagp.report.leaderboard import page as page_text
    from adagp.report.leaderboard_plots import leaderboard_png

    check_folders(page)
    require("matplotlib")
    pictures = [page.with_name(f"{page.stem}-{path.resolve().name}.png") for path in runs]
    if len(set(pictures)) < len(pictures):
        raise InputError("two folders have the same name, so that their pictures would too: rename one")
    for picture, result in zip(pictures, results, strict=True):
        write_bytes(picture, leaderboard_png(result))
    write_text(page, page_text(results, [picture.name for picture in pictures]))
    return [page, *pictures]
