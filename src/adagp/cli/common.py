"""What every command does alike: errors become one line and an exit code, results are a table or one JSON object."""

import functools
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from adagp.cli.signals import LINE, Stopped, stoppable
from adagp.errors import AdagpError
from adagp.extras import remedy
from adagp.files import strict
from adagp.report import Table

_LONGEST_MESSAGE = 900  # what is wrong may be repeated in a message, however long it is

P = ParamSpec("P")
R = TypeVar("R")


class InputError(AdagpError, ValueError):
    """An option cannot be used as given; the message names it and the remedy."""

    exit_code = 2


def check_folders(*paths: Path | None) -> None:
    """Before any work: every file can be written where it is wanted."""
    for path in paths:
        if path is not None and path.is_dir():
            raise InputError(f"'{path}' cannot be written: it is a folder; name a file in it")
        if path is not None and not path.parent.is_dir():
            raise InputError(f"'{path}' cannot be written: there is no folder '{path.parent}'; make it first")


def check_pictures(*paths: Path | None) -> None:
    """Before any work: every picture can be drawn, and written where it is wanted."""
    check_folders(*paths)
    for path in paths:
        if path is not None:
            from adagp.report.accelerator_figures import picture_format

            try:
                picture_format(path)
            except ValueError as error:
                raise InputError(str(error)) from error


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn errors into one line and an exit code: 2 when the input is wrong, 1 when the work failed.

    A signal is a line and a code too, 128 and its number.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        debug = bool(kwargs.get("debug"))
        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("adagp").setLevel(logging.DEBUG if debug else logging.WARNING)
        try:
            with stoppable():
                return _explained(function, debug, *args, **kwargs)
        except Stopped as stop:
            print(LINE, file=sys.stderr)
            raise typer.Exit(128 + stop.signal_number) from None

    return wrapped


def _explained(function: Callable[P, R], debug: bool, /, *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        code = _exit_code(error)
        if code is None or debug:
            raise
        print(f"adagp: error: {_message(error)}", file=sys.stderr)
        raise typer.Exit(code) from None


def _exit_code(error: Exception) -> int | None:
    """None for an error that nobody foresaw."""
    if isinstance(error, AdagpError):
        return error.exit_code
    if isinstance(error, ModuleNotFoundError):
        return 1 if remedy(error) else None
    return 1 if isinstance(error, OSError) else None


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"this command needs an extra; {remedy(error)}"
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}; check the path, its permissions and the space left"
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:300]} ... {text[-300:]}"


def print_table(table: Table) -> None:
    """A table for people, and below it the notes that say what its figures are."""
    rich = RichTable(title=escape(table.title), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    rich.padding = (0, 1, 0, 0)
    console = Console(highlight=False)
    # Where a terminal is narrow, headings become tall and text wraps; no figure is cut or left out.
    tall = _width([table.columns, *table.rows]) > console.width
    headings = [heading.replace(" ", "\n") if tall else heading for heading in table.columns]
    longest_words = [[max(cell.split(), key=len, default="") for cell in row] for row in (table.columns, *table.rows)]
    wide = Console(highlight=False, width=max(console.width, _width(longest_words)))
    for place, heading in enumerate(headings):
        rich.add_column(escape(heading), justify="left" if place < table.text_columns else "right")
    for row in table.rows:
        rich.add_row(*(escape(cell) for cell in row))
    wide.print(rich)
    for note in table.notes:
        console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Of a table in which nothing is wrapped, with two characters between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))


def print_tables(tables: Sequence[Table], facts: dict[str, Any], as_json: bool) -> None:
    """Tables for people, or the same tables and some facts for programs."""
    if as_json:
        print_json({"tables": [table.plain() for table in tables], **facts})
        return
    for table in tables:
        print_table(table)


def print_json(value: dict[str, Any]) -> None:
    """One object on one line, so that programs need no other output format."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:  # a figure that is no number, for which JSON has no word
        text = json.dumps(strict(value), allow_nan=False)
    print(text)


def progress_line(text: str) -> None:
    """A line of progress for people who wait."""
    Console(stderr=True, highlight=False).print(text, style="dim", markup=False)
