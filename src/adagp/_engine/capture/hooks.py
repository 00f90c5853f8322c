"""The forward hooks: of covered layers, of the model, of the first forward, and around a bug of torch."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adagp._engine.capture.masks import keep_mask
from adagp.layers import Layer

logger = logging.getLogger("adagp")


class Listener(Protocol):
    """The forward that hooks report to."""

    @property
    def cuts_graph(self) -> bool:
        """Whether some parameters do not require grad because of the plan."""

    @property
    def keeps_less(self) -> bool:
        """Whether memory is to be saved between forward and backward."""

    def on_layer_output(self, layer: Layer, layer_input: Any, output: Any) -> Tensor | None:
        """Take the output of a covered layer; what is returned stands in for it."""

    def on_model_call(self) -> None:
        """The model's forward begins."""

    def on_call_to_cut(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The forward of a model that may be cut begins, with these arguments."""

    def on_cut(self, name: str, output: Any) -> Tensor | None:
        """Take what crosses a cut; what is returned stands in for it."""

    def on_model_output(self, output: Any) -> Tensor | None:
        """Take the output of the model; what is returned stands in for it."""


@dataclass
class Current:
    """What is going on now, as the hooks see it; none of it is saved.

    Attributes:
        listener: The forward of the open batch, if one is open.
        is_compiled: Whether the forward is compiled: hooks must then do the same in every batch of a phase.
        cut_hooks: The hooks of the modules at which local losses cut the network.
        call_order: The modules with parameters in the order in which the first batch called them.
        warned: The warnings that were logged, by a key.
    """

    listener: Listener | None = None
    is_compiled: bool = False
    cut_hooks: dict[str, RemovableHandle] = field(default_factory=dict)
    call_order: dict[str, None] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)

    def warn_once(self, key: str, message: str, *arguments: object) -> None:
        """Log a warning unless one with this key was logged before."""
        if key not in self.warned:
            self.warned.add(key)
            logger.warning(message, *arguments)


class _Hook:
    """A hook without effect in copies of the model (deepcopy, pickle), which carry its hooks along."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Hook":
        return self

    def __reduce__(self) -> tuple[type["_NoHook"], tuple[()]]:
        return _NoHook, ()


class LayerHook(_Hook):
    """The forward hook of one covered layer."""

    def __init__(self, current: Current, layer: Layer) -> None:
        """Report to the batch that is open, if any."""
        self._current, self._layer = current, layer

    def __call__(self, module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> Tensor | None:
        """Show the output to the open batch; what is returned stands in for it."""
        if self._current.listener is not None and module is self._layer.module:
            if torch.compiler.is_compiling():
                self._current.is_compiled = True
            if self._layer.is_part:
                layer_input, shown = self._layer.kind.shown(module, inputs, named, output)
                self._current.listener.on_layer_output(self._layer, layer_input, shown)
                return None
            return self._current.listener.on_layer_output(
                self._layer, inputs[0] if inputs else named.get("input"), output
            )
        return None


class ModelCallHook(_Hook):
    """A pre-hook of the model, for predictors that ask for the gradient of the loss at its output."""

    def __init__(self, current: Current, model: nn.Module) -> None:
        """Report to the batch that is open, if any."""
        self._current, self._model = current, model

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Say that the forward begins."""
        if self._current.listener is not None and module is self._model:
            self._current.listener.on_model_call()


class ModelOutputHook(_Hook):
    """The forward hook of the model, for predictors that ask for the gradient of the loss at its output."""

    def __init__(self, current: Current, model: nn.Module) -> None:
        """Report to the batch that is open, if any."""
        self._current, self._model = current, model

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        """Show the output to the open batch; what is returned stands in for it."""
        if self._current.listener is not None and module is self._model:
            return self._current.listener.on_model_output(output)
        return None


class CallToCutHook(_Hook):
    """A pre-hook of a model that local losses may cut: what it is called with shows where."""

    def __init__(self, current: Current, model: nn.Module) -> None:
        """Report to the batch that is open, if any."""
        self._current, self._model = current, model

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Say that the forward begins."""
        if self._current.listener is not None and module is self._model:
            self._current.listener.on_call_to_cut(inputs, named)


class CutHook(_Hook):
    """The forward hook of a module at which local losses cut the network."""

    def __init__(self, current: Current, name: str, module: nn.Module) -> None:
        """`name` is the module's."""
        self._current, self._name, self._module = current, name, module

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        """Show the output to the open batch; what is returned stands in for it."""
        if self._current.listener is not None and module is self._module:
            return self._current.listener.on_cut(self._name, output)
        return None


def hook_cuts(current: Current, model: nn.Module, cuts: Sequence[str]) -> None:
    """Hook into the modules of these cuts, once each."""
    for cut in cuts:
        if cut not in current.cut_hooks:
            module = model.get_submodule(cut)
            current.cut_hooks[cut] = module.register_forward_hook(CutHook(current, cut, module))


class OrderHook(_Hook):
    """A pre-hook that notes when a module is first called in a batch."""

    def __init__(self, current: Current, name: str, module: nn.Module) -> None:
        """`name` is the module's."""
        self._current, self._name, self._module = current, name, module

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Note the name, once."""
        if self._current.listener is not None and module is self._module:
            self._current.call_order.setdefault(self._name)


class GroupNormHook(_Hook):
    """A pre-hook that keeps torch's CPU backward of GroupNorm from crashing.

    It reads memory that is not its own when the input is channels-last and needs no gradient while weight or bias do,
    as after a predicted prefix. Here such an input needs one, at the price of one small gradient.
    """

    def __init__(self, current: Current) -> None:
        """Serve the batch that is open, if any."""
        self._current = current

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The inputs to use instead, or None for the same."""
        listener = self._current.listener
        if listener is None or not listener.cuts_graph or not torch.is_grad_enabled():
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


class MaskHook(_Hook):
    """The forward hook of a ReLU or dropout, which then keeps a mask where memory is to be saved."""

    def __init__(self, current: Current, module: nn.Module) -> None:
        """Serve the batch that is open, if any."""
        self._current, self._module = current, module

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Change what the graph keeps; a compiler decides that itself."""
        listener = self._current.listener
        if listener is None or module is not self._module or torch.compiler.is_compiling():
            return
        if listener.keeps_less:
            keep_mask(module, output)


class _NoHook:
    """What a hook becomes in a pickled model."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""
