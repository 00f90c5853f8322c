"""A user's own network by name: `package.file:factory`."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import Path

import torch
from torch import nn

from adagp.accelerator.shapes import require_count
from adagp.accelerator.tracing import trace
from adagp.accelerator.workload import LayerOp


def module_network(reference: str, input_shape: tuple[int, ...], batch: int) -> list[LayerOp]:
    """The operations of one batch of a network that a function builds; packages in the current folder are found.

    Args:
        reference: `package.file:factory`.
        input_shape: Shape of one sample.
        batch: Samples in a batch.

    Raises:
        ValueError: If there is no such function, it builds no module, or the module cannot be traced.
    """
    require_count("batch", batch)
    for size in (*input_shape, batch * prod(input_shape)):
        require_count("input", size)
    factory = _factory(reference)
    with _named(reference, "cannot be built"), torch.device("meta"):
        built = factory()
    if not isinstance(built, nn.Module):
        raise ValueError(
            f"module={reference}: gives a {type(built).__name__}; name a function that returns an nn.Module"
        )
    with _named(reference, "cannot be traced"):
        return trace(built, torch.empty(batch, *input_shape, device="meta"))


def _factory(reference: str) -> type[nn.Module]:
    home, colon, name = reference.partition(":")
    if not colon or not home or not name:
        raise ValueError(f"module={reference}: is not PACKAGE.FILE:FACTORY; give for example mypackage.nets:build")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _named(reference, f"{home} cannot be imported"):
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            if not home.startswith(str(error.name)):
                raise  # the user's module exists, but one of its own imports is missing
            raise ValueError(
                f"module={reference}: {home} cannot be imported ({error}); run from the folder that holds it"
            ) from error
    found: type[nn.Module] | None = getattr(module, name, None)
    if found is None:
        raise ValueError(f"module={reference}: {home} has no '{name}'; name a function or class that is there")
    if not callable(found):
        raise ValueError(f"module={reference}: '{name}' cannot be called; name a function that builds the network")
    return found


@contextmanager
def _named(reference: str, what: str) -> Iterator[None]:
    """Turn any error of the user's code into one line that says where it happened."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and str(error).startswith((f"module={reference}", "model: ")):
            raise  # already explained
        reason = " ".join((str(error) or "no message").split())
        raise ValueError(
            f"module={reference}: {what}: {_place(error)}{type(error).__name__}: {reason}; correct it there"
        ) from error


def _place(error: BaseException) -> str:
    """File and line of the innermost frame outside installed packages, or of a syntax error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: " if error.filename else ""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "<frozen" not in frame.filename and "site-packages" not in frame.filename
    ]
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
