"""The forward hooks: of covered layers, of the first forward, and around a bug of torch."""

from typing import Any

import torch
from torch import Tensor, nn

from adagp._engine.attachment import Attachment
from adagp.layers import Layer


class _Hook:
    """Copies of a model (deepcopy, pickle) carry its hooks along, without effect."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Hook":
        return self

    def __reduce__(self) -> tuple[type["_NoHook"], tuple[()]]:
        return _NoHook, ()


class Hook(_Hook):
    """The forward hook of one layer."""

    def __init__(self, attached: Attachment, layer: Layer) -> None:
        """Serve the batch that is open, if any."""
        self._attached, self._layer = attached, layer

    def __call__(self, module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> Tensor | None:
        """Show the output to the open batch; what is returned takes its place."""
        if self._attached.open_batch is not None and module is self._layer.module:
            if torch.compiler.is_compiling():
                self._attached.is_compiled = True
            return self._attached.open_batch.on_layer_output(
                self._layer, inputs[0] if inputs else named.get("input"), output
            )
        return None


class OrderHook(_Hook):
    """A pre-hook that notes when a module is first called in a batch."""

    def __init__(self, attached: Attachment, name: str, module: nn.Module) -> None:
        """`name` is the module's."""
        self._attached, self._name, self._module = attached, name, module

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Note the name, once."""
        if self._attached.open_batch is not None and module is self._module:
            self._attached.call_order.setdefault(self._name)


class GroupNormHook(_Hook):
    """A pre-hook that keeps torch's CPU backward of GroupNorm from crashing.

    It reads memory that is not its own when the input is channels-last and needs no gradient while weight or bias do,
    as after a predicted prefix. Here such an input needs one, at the price of one small gradient.
    """

    def __init__(self, attached: Attachment) -> None:
        """Serve the batch that is open, if any."""
        self._attached = attached

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The inputs to use instead, or None for the same."""
        batch = self._attached.open_batch
        if batch is None or not batch.cuts_graph or not torch.is_grad_enabled():
            return None
        if torch.compiler.is_compiling():  # a tensor inside a compiled graph cannot be made to need a gradient
            changed: tuple[tuple[Any, ...], dict[str, Any]] = torch.compiler.disable(_needing_grad)(
                module, inputs, named
            )
            return changed
        return _needing_grad(module, inputs, named)


def _needing_grad(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    first = inputs[0] if inputs else named["input"]
    trains = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    if first.device.type != "cpu" or first.requires_grad or first.is_contiguous() or not trains:
        return inputs, named
    first = first.detach().requires_grad_()
    return ((first, *inputs[1:]), named) if inputs else ((), {**named, "input": first})


class _NoHook:
    """What a hook becomes in a pickled model."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""
