"""A user's own network by name: `package.file:factory`."""

from collections.abc import Sequence
from math import prod

import torch
from torch import nn

from adagp.accelerator.shapes import require_count
from adagp.accelerator.text import InputShape
from adagp.accelerator.tracing import trace
from adagp.accelerator.workload import LayerOp
from adagp.user_code import load_function, named_errors


def module_network(reference: str, inputs: Sequence[InputShape], batch: int) -> list[LayerOp]:
    """The operations of one batch of a network that a function builds; packages in the current folder are found.

    Args:
        reference: `package.file:factory`.
        inputs: What one sample consists of, the arguments of the forward.
        batch: Samples in a batch.

    Raises:
        ValueError: If there is no such function, it builds no module, or the module cannot be traced.
    """
    require_count("batch", batch)
    for each in inputs:
        for size in (*each.sizes, batch * prod(each.sizes)):
            require_count("input", size)
    factory = load_function(reference, "name a function that builds the network")
    with named_errors(reference, "cannot be built"), torch.device("meta"):
        built = factory()
    if not isinstance(built, nn.Module):
        raise ValueError(
            f"module={reference}: gives a {type(built).__name__}; name a function that returns an nn.Module"
        )
    with named_errors(reference, "cannot be traced"):
        return trace(
            built,
            *(
                torch.empty(batch, *each.sizes, dtype=torch.int64 if each.integers else None, device="meta")
                for each in inputs
            ),
        )
