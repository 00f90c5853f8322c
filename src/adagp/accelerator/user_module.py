"""A user's own network by name: `package.file:factory`."""

import sys
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from adagp.accelerator.tracing import trace
from adagp.accelerator.workload import Work


def module_network(reference: str, input_shape: tuple[int, ...], batch: int) -> list[Work]:
    """The work of one batch of a network that a function builds; packages in the current folder are found.

    Args:
        reference: `package.file:factory`.
        input_shape: Of one sample.
        batch: Samples in a batch.

    Raises:
        ValueError: where there is no such function, it builds no module, or the module cannot be traced.
    """
    if batch < 1 or min(input_shape) < 1:
        raise ValueError(f"batch={batch}, input={'x'.join(map(str, input_shape))}: must be at least 1 everywhere")
    with torch.device("meta"):
        built = _factory(reference)()
    if not isinstance(built, nn.Module):
        raise ValueError(
            f"module={reference}: gives a {type(built).__name__}; name a function that returns an nn.Module"
        )
    return trace(built, torch.empty(batch, *input_shape, device="meta"))


def _factory(reference: str) -> type[nn.Module]:
    home, colon, name = reference.partition(":")
    if not colon or not home or not name:
        raise ValueError(f"module={reference}: is not PACKAGE.FILE:FACTORY; give for example mypackage.nets:build")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: type[nn.Module] = getattr(import_module(home), name)
    except ImportError as error:
        raise ValueError(
            f"module={reference}: {home} cannot be imported ({error}); run from the folder that holds it"
        ) from error
    except AttributeError:
        raise ValueError(
            f"module={reference}: {home} has no '{name}'; name a function or class that is there"
        ) from None
    if not callable(found):
        raise ValueError(f"module={reference}: '{name}' cannot be called; name a function that builds the network")
    return found
