"""`adagp reproduce numbers`: every figure, table and stated number of the four papers."""

from pathlib import Path
from typing import Annotated

import typer

from adagp.cli import options
from adagp.cli.common import check_folders, command, print_files, print_json, print_table, write_text
from adagp.cli.display import Display


@command
def numbers_command(
    page: Annotated[Path | None, typer.Option(help="Write all rows to this Markdown file.")] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Every figure, table and stated number of the four papers: reproduced, refuted or not checkable here.

    Figures of the accelerator and of pipelines are computed, which takes about a minute. Trainings and synthesis are
    recorded; each row has the command that runs them again.

    Try:

    - `adagp reproduce numbers`: how many rows have which verdict.
    - `adagp reproduce numbers --page docs/paper-numbers.md`: the page with all rows.
    - `adagp reproduce numbers --json`: all rows, for programs.
    """
    del debug
    from adagp.reproduce.numbers import numbers, summary_table
    from adagp.reproduce.numbers import page as page_text

    check_folders(page)
    with Display(as_json) as display:
        found = numbers(display.on_message)
    if page is not None:
        write_text(page, page_text(found))
    if as_json:
        rows = {
            title: [
                {
                    "where": row.where,
                    "what": row.what,
                    "theirs": row.theirs,
                    "verdict": row.verdict.value,
                    "ours": row.ours,
                    "how": row.how,
                }
                for row in of_paper
            ]
            for title, of_paper in found.items()
        }
        print_json({"papers": rows})
        return
    print_table(summary_table(found))
    print_files(page=page)
