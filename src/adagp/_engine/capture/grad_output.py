"""Delivers the gradient that arrives at a layer's output in backward, and lets it flow on unchanged."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

Deliver = Callable[[tuple[Tensor, ...], Tensor], None]
"""Called in backward with what was kept of the layer's input and the gradient at its output."""
Keep = Callable[[Tensor], tuple[Tensor, ...]]
"""Chooses in the forward what is kept of the layer's input."""


class _Deliver(torch.autograd.Function):
    """The identity, in place so that an in-place activation may follow.

    `_anchor` is a leaf that requires grad, so that the gradient comes this far even where nothing before the layer
    needs one. Only a backward that accumulates into `.grad` reaches a leaf, in any library; `torch.autograd.grad`, as
    in a gradient penalty, does not.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, _anchor: Tensor, arrived: list[Tensor], *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        ctx.arrived = arrived
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors  # checkpointing gives them once
        ctx.arrived[:] = [*kept, grads[0].detach()]
        return grads[0], grads[0].new_empty(0), None, *(None for _ in kept)


def _whole(layer_input: Tensor) -> tuple[Tensor, ...]:
    return (layer_input,)


def deliver_grad_output(output: Tensor, layer_input: Tensor, deliver: Deliver, keep: Keep = _whole) -> Tensor:
    """The output to use in place of `output`; `deliver` is called when backward passes it.

    Args:
        output: Of the layer.
        layer_input: Its input.
        deliver: Gets what was kept, and the gradient.
        keep: Chooses what is kept; nothing else of the input is held.
    """
    if torch.compiler.is_compiling():  # what these do cannot be part of a compiled graph
        outside: Tensor = torch.compiler.disable(_delivered)(output, layer_input, deliver, keep)
        return outside
    return _delivered(output, layer_input, deliver, keep)


def _forget_input(output: Tensor) -> None:
    """Let a convolution keep the form of its input alone.

    Torch's keeps all of it, though the gradient of the input needs no values where the weight has none.
    """
    node: Any = output.grad_fn
    saved = getattr(node, "_raw_saved_input", None)
    if saved is None or node.next_functions[1][0] is not None:
        return
    with suppress(RuntimeError):  # activation checkpointing, or another hook of the user's, has taken it already
        saved.register_hooks(_form, lambda form: torch.empty_strided(**form))


def _form(tensor: Tensor) -> dict[str, Any]:
    return {"size": tensor.shape, "stride": tensor.stride(), "dtype": tensor.dtype, "device": tensor.device}


def _delivered(output: Tensor, layer_input: Tensor, deliver: Deliver, keep: Keep) -> Tensor:
    arrived: list[Tensor] = []

    def hand_over(_: Tensor) -> None:
        *given, grad_output = arrived
        arrived.clear()
        with torch.no_grad():
            deliver(tuple(given), grad_output)

    anchor = torch.empty(0, device=output.device, dtype=output.dtype, requires_grad=True)
    anchor.register_post_accumulate_grad_hook(hand_over)
    # A view (Linear gives one for sequences) would be detached from this by the first in-place operation on it.
    fresh = output.clone() if output._is_view() else output
    with torch.no_grad():
        kept = tuple(one.detach() for one in keep(layer_input))
    if all(one.data_ptr() != layer_input.data_ptr() for one in kept):
        _forget_input(output)
    passed: Tensor = _Deliver.apply(fresh, anchor, arrived, *kept)  # type: ignore[no-untyped-call]
    return passed
