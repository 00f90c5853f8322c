"""Trying `sampled` on a layer beside its exact gradient: seconds and squared distances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear

from adagp.kernels.geometry import Geometry, geometry
from adagp.kernels.sampled import Sums
from adagp.layers import Layer
from adagp.schedules import Trial
from adagp.sources.as_convolution import as_convolution


@dataclass(frozen=True)
class Tried:
    """The exact gradients, and what was found beside them."""

    exact: Sums
    trial: Trial


def seen_by_kernel(layer: Layer, layer_input: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor, Geometry]:
    """One call of a layer as the kernel takes it: input, `grad_output`, and the convolution."""
    seen = as_convolution(layer, layer_input, grad_output)
    options = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **seen.options}
    return seen.image, seen.grad_output, geometry(seen.weight_shape, **options)


def try_rates(
    layer: Layer,
    layer_input: Tensor,
    grad_output: Tensor,
    rates: Sequence[float],
    sample: Callable[[float], Tensor],
    previous: Tensor | None,
) -> Tried:
    """Compute a layer's exact gradients, and sample its weight gradient at some rates.

    Args:
        layer: The layer.
        layer_input: Its input.
        grad_output: The gradient at its output.
        rates: To try.
        sample: Estimates the weight gradient at a rate.
        previous: The exact weight gradient of the batch before.
    """
    with torch.enable_grad():
        given = layer_input.detach().to(grad_output.dtype).requires_grad_()
        weight = layer.weight.detach().requires_grad_()
        forward, output = _timed(layer, lambda: _forward(layer.module, given, weight))
        backward, _ = _timed(layer, lambda: torch.autograd.grad(output, given, grad_output, retain_graph=True))
        seconds, (exact,) = _timed(layer, lambda: torch.autograd.grad(output, weight, grad_output))
    sampled, added = {}, {}
    square = max(float(exact.square().sum()), torch.finfo(torch.float32).tiny)
    for rate in rates:
        sampled[rate], found = _timed(layer, partial(sample, rate))
        added[rate] = float((found.view_as(exact) - exact).square().sum()) / square
    spread = None if previous is None else 1 - float(cosine_similarity(exact.flatten(), previous.flatten(), dim=0))
    bias = as_convolution(layer, layer_input, grad_output).grad_output.sum((0, 2, 3), dtype=exact.dtype)
    return Tried(Sums(exact, bias), Trial(forward + backward, seconds, sampled, added, spread))


def _forward(module: nn.Module, given: Tensor, weight: Tensor) -> Tensor:
    """The layer's output without its hooks, which would take part in the batch that is open."""
    bias: Any = module.bias
    if isinstance(module, nn.Linear):
        return linear(given, weight.to(given.dtype), None if bias is None else bias.detach().to(given.dtype))
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    output: Tensor = module._conv_forward(
        given, weight.to(given.dtype), None if bias is None else bias.detach().to(given.dtype)
    )
    return output


def _timed(layer: Layer, work: Callable[[], Any]) -> tuple[float, Any]:
    synchronize = torch.get_device_module(layer.weight.device).synchronize
    synchronize()
    begin = perf_counter()
    result = work()
    synchronize()
    return perf_counter() - begin, result
