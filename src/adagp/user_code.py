"""A function of the user by name, and its errors in one line that says where they happened."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def load_function(reference: str, remedy: str) -> Callable[..., Any]:
    """The function or class of `package.file:name` or `path/file.py:name`; the current folder is searched too.

    Args:
        reference: As the user wrote it.
        remedy: What to name, such as "name a function that builds the network".

    Raises:
        ValueError: If there is none, or its file cannot be imported.
    """
    home, colon, name = reference.rpartition(":")
    if not colon or not home or not name:
        raise ValueError(
            f"module={reference}: names no function; give for example mine.py:build or mypackage.nets:build"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with named_errors(reference, f"{home} cannot be imported"):
        module = _from_path(reference, Path(home)) if home.endswith(".py") else _by_name(reference, home)
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        raise ValueError(f"module={reference}: {home} has no '{name}'; name a function or class that is there")
    if not callable(found):
        raise ValueError(f"module={reference}: '{name}' cannot be called; {remedy}")
    return found


def _by_name(reference: str, home: str) -> ModuleType:
    try:
        return import_module(home)
    except ModuleNotFoundError as error:
        if not home.startswith(str(error.name)):
            raise  # the user's module exists, but one of its own imports is missing
        raise ValueError(
            f"module={reference}: {home} cannot be imported ({error}); run from the folder that holds it"
        ) from error


def _from_path(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"module={reference}: there is no file '{path}'; name one that exists")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python path/file.py` does, so that it finds its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def named_errors(reference: str, what: str) -> Iterator[None]:
    """Turn any error of the user's code into one line; errors that name the reference already pass."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and str(error).startswith((f"module={reference}", "model: ")):
            raise  # already explained
        raise ValueError(f"module={reference}: {what}: {one_line(error)}; correct it there") from error


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Send what the user's code and its child processes print to stderr: stdout is for results."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def one_line(error: BaseException) -> str:
    """The place and the message of an error."""
    reason = " ".join((str(error) or "no message").split())
    return f"{_place(error)}{type(error).__name__}: {reason}"


_OWN = str(Path(__file__).parent)


def _place(error: BaseException) -> str:
    """File and line of the innermost frame outside this and all installed packages, or of a syntax error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: " if error.filename else ""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OWN)
        and "<frozen" not in frame.filename
        and "site-packages" not in frame.filename
    ]
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
