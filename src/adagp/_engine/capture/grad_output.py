"""Delivers the gradient that arrives at a layer's output in backward, and lets it flow on unchanged."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Deliver = Callable[[Tensor, Tensor], None]
"""Called in backward with the layer's input and the gradient at its output."""


class _Deliver(torch.autograd.Function):
    """The identity, in place so that an in-place activation may follow.

    `_anchor` is a leaf that requires grad, so that the gradient comes this far even where nothing before the layer
    needs one. Only a backward that accumulates into `.grad` reaches a leaf, in any library; `torch.autograd.grad`, as
    in a gradient penalty, does not.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, _anchor: Tensor, layer_input: Tensor, arrived: list[Tensor]) -> Tensor:
        ctx.save_for_backward(layer_input)
        ctx.arrived = arrived
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ctx.arrived[:] = [ctx.saved_tensors[0], grads[0].detach()]
        return grads[0], grads[0].new_empty(0), None, None


def deliver_grad_output(output: Tensor, layer_input: Tensor, deliver: Deliver) -> Tensor:
    """The output to use in place of `output`; `deliver` is called when backward passes it."""
    if torch.compiler.is_compiling():  # what `deliver` does cannot be part of a compiled graph
        outside: Tensor = torch.compiler.disable(_delivered)(output, layer_input, deliver)
        return outside
    return _delivered(output, layer_input, deliver)


def _delivered(output: Tensor, layer_input: Tensor, deliver: Deliver) -> Tensor:
    arrived: list[Tensor] = []

    def hand_over(_: Tensor) -> None:
        layer_input, grad_output = arrived
        arrived.clear()
        with torch.no_grad():
            deliver(layer_input, grad_output)

    anchor = torch.empty(0, device=output.device, dtype=output.dtype, requires_grad=True)
    anchor.register_post_accumulate_grad_hook(hand_over)
    # A view (Linear gives one for sequences) would be detached from this by the first in-place operation on it.
    fresh = output.clone() if output._is_view() else output
    passed: Tensor = _Deliver.apply(fresh, anchor, layer_input.detach(), arrived)  # type: ignore[no-untyped-call]
    return passed
