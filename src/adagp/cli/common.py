"""The frame of all commands: errors become one line and an exit code, results are tables or one JSON object."""

import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from adagp.cli.signals import LINE, Stopped, stoppable
from adagp.errors import AdagpError
from adagp.extras import remedy, require
from adagp.files import strict, write_bytes
from adagp.report.table import Table

_LONGEST_MESSAGE = 900  # a message may repeat a wrong value of any length

P = ParamSpec("P")
R = TypeVar("R")


class InputError(AdagpError, ValueError):
    """An option cannot be used as given; the message names it and the remedy."""

    exit_code = 2


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what a model refuses into an error about an option."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


def check_folders(*paths: Path | None) -> None:
    """Check before any work that every file can be written."""
    for path in paths:
        if path is not None and path.is_dir():
            raise InputError(f"'{path}' cannot be written: it is a folder; name a file in it")
        if path is not None and not path.parent.is_dir():
            raise InputError(f"'{path}' cannot be written: there is no folder '{path.parent}'; make it first")


def check_pictures(*paths: Path | None) -> None:
    """Check before any work that every picture has a known format and can be drawn and written."""
    from adagp.report.plot import picture_format

    check_folders(*paths)
    for path in paths:
        if path is not None:
            with refusals():
                picture_format(path)
            require("matplotlib")


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn errors into one line and an exit code: 2 when the input is wrong, 1 when the work failed.

    A signal also ends in one line; its exit code is 128 plus its number.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        debug = bool(kwargs.get("debug"))
        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("adagp").setLevel(logging.DEBUG if debug else logging.WARNING)
        try:
            with stoppable():
                return _error_context(function, debug, *args, **kwargs)
        except Stopped as stop:
            print(LINE, file=sys.stderr)
            raise typer.Exit(128 + stop.signal_number) from None

    return wrapped


def _error_context(function: Callable[P, R], debug: bool, /, *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        code = _exit_code(error)
        if code is None or debug:
            raise
        print(f"adagp: error: {_message(error)}", file=sys.stderr)
        raise typer.Exit(code) from None


def _exit_code(error: Exception) -> int | None:
    """The exit code of an error; None for an unexpected one."""
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
    """Print a table and its notes."""
    rich = RichTable(title=escape(table.title), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    rich.padding = (0, 1, 0, 0)
    console = Console(highlight=False)
    # In a narrow terminal headings become tall and text wraps; no figure is cut or left out.
    tall = _width([table.columns, *table.rows]) > console.width
    headings = [heading.replace(" ", "\n") if tall else heading for heading in table.columns]
    longest_words = [[max(cell.split(), key=len, default="") for cell in row] for row in (table.columns, *table.rows)]
    wide = Console(highlight=False, width=max(console.width, _width(longest_words)))
    for place, heading in enumerate(headings):
        longest = max(len(row[place]) for row in longest_words)
        justify: Literal["left", "right"] = "left" if place < table.text_columns else "right"
        rich.add_column(escape(heading), justify=justify, min_width=longest)
    for row in table.rows:
        rich.add_row(*(escape(cell) for cell in row))
    wide.print(rich)
    for note in table.notes:
        console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


def _width(rows: Sequence[Sequence[str]]) -> int:
    """The width of a table without wrapping, with two characters between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))


def print_tables(tables: Sequence[Table], facts: dict[str, Any], as_json: bool) -> None:
    """Print tables, or with `as_json` the same tables and some facts as JSON."""
    if as_json:
        print_json({"tables": [table.plain() for table in tables], **facts})
        return
    for table in tables:
        print_table(table)


def print_json(value: dict[str, Any]) -> None:
    """Print one object on one line."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:  # NaN or infinity, which JSON cannot hold
        text = json.dumps(strict(value), allow_nan=False)
    print(text)


def progress_line(text: str) -> None:
    """Print a line of progress on stderr."""
    Console(stderr=True, highlight=False).print(text, style="dim", markup=False)


def print_files(**paths: Path | None) -> None:
    """Print where each file was written; None was not asked for."""
    for kind, path in paths.items():
        if path is not None:
            print(f"{kind}: {path}")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    write_bytes(path, text.encode())
