"""What every command does alike: errors become one line and an exit code, results are a table or one JSON object."""

import functools
import json
import logging
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from adagp import data
from adagp.report import Table
from adagp.training import RecipeError, TrainingError
from adagp.training.files import strict

P = ParamSpec("P")
R = TypeVar("R")


def command(function: Callable[P, R]) -> Callable[P, R]:
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


def print_table(table: Table) -> None:
    """A table for people, and below it the notes that say what its figures are."""
    rich = RichTable(title=escape(table.title), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    rich.padding = (0, 1, 0, 0)
    for place, column in enumerate(table.columns):
        rich.add_column(escape(column), justify="left" if place < table.text_columns else "right")
    for row in table.rows:
        rich.add_row(*(escape(cell) for cell in row))
    console = Console(highlight=False)
    console.print(rich)
    for note in table.notes:
        console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


def print_json(value: dict[str, Any]) -> None:
    """One object on one line, so that programs need no other output format."""
    print(json.dumps(strict(value), allow_nan=False))
