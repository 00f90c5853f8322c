"""Multiply-adds of one forward, and the share of chosen modules."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from adagp.cost.tracing import trace_forward


def multiply_adds(model: nn.Module, inputs: Sequence[Tensor], among: Collection[str]) -> tuple[int, int]:
    """Multiply-adds of one forward, and those that the named modules contribute.

    Matrix products and convolutions count wherever they are called, so attention's count although they belong to no
    layer. Norms, activations and pooling do not count.

    Args:
        model: Any module, traced in the mode it is in: `eval` gives the work of one inference.
        inputs: The arguments of its forward.
        among: Names of modules.

    Raises:
        ValueError: If the forward cannot be traced.
    """
    with torch.no_grad():
        products = trace_forward(model, *inputs).products
    named = [product.macs for product in products if any(call.module in among for call in product.calls)]
    return sum(product.macs for product in products), sum(named)
