"""Tracing: the work of any module, found without computing anything.

The network's forward is run once on the meta device, which knows shapes but no numbers, and every convolution and
product of matrices is noted below autograd, wherever it is called: in a layer, in attention, or by a function that
borrows a layer's weight. Autograd itself says which gradients training needs: the first layer passes no error on, and
neither does what stands behind frozen weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from adagp.accelerator.shapes import LayerShape, Pass
from adagp.accelerator.workload import Work
from adagp.layers import kind_of

aten = torch.ops.aten
# Norms, activations, pooling and sums: what a vector unit beside the array does. Unknown functions count as nothing.
VECTOR_FUNCTIONS = frozenset(
    getattr(aten, name)
    for name in (
        *("native_batch_norm", "native_layer_norm", "native_group_norm"),
        *("relu", "relu_", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "gelu", "silu", "silu_"),
        *("sigmoid", "sigmoid_", "tanh", "tanh_", "hardswish", "hardswish_", "_softmax", "_safe_softmax"),
        *("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "mean"),
        *("add", "add_"),
    )
)


def trace(model: nn.Module, *inputs: Tensor) -> list[Work]:
    """The products of a model's forward, in the order in which they are made.

    Neither the model nor the inputs are computed with or changed: both may be on any device, and the inputs may hold
    anything, as only their shapes and types are looked at. The model is traced in the mode it is in, `train` or `eval`.

    Args:
        model: Any module.
        *inputs: What its forward takes; the batch is the first dimension.

    Raises:
        ValueError: if the forward cannot be followed by shapes alone, naming the module at which it stopped.
    """
    meta = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    where: list[tuple[str, nn.Module]] = []
    recorder = _Recorder(model, {name: meta[name] for name, _ in model.named_parameters()}, where)
    hooks = [
        hook
        for name, module in model.named_modules()
        for hook in (
            module.register_forward_pre_hook(_enter(where, name), prepend=True),
            module.register_forward_hook(_leave(where)),
        )
    ]
    try:
        arguments = tuple(torch.empty_like(tensor, device="meta") for tensor in inputs)
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), recorder:
            torch.func.functional_call(model, meta, arguments)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError) as error:
        name, module = where[-1] if where else ("", model)
        raise ValueError(
            f"model: cannot be traced: {type(module).__name__} {name or '(the model itself)'} failed on shapes alone "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}); check the shapes of the inputs, "
            "register constant tensors as buffers, and keep decisions that depend on values out of the forward"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return recorder.found


def _enter(where: list[tuple[str, nn.Module]], name: str) -> Callable[..., None]:
    return lambda module, _: where.append((name, module))


def _leave(where: list[tuple[str, nn.Module]]) -> Callable[..., None]:
    def leave(*_: object) -> None:
        where.pop()

    return leave


class _Recorder(TorchDispatchMode):
    """Notes every product below autograd, and refuses one it does not know rather than leave it out."""

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor], where: list[tuple[str, nn.Module]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Work] = []
        self._model, self._where = model, where
        self._parameters = {_storage(tensor): (name, tensor) for name, tensor in parameters.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", None)
        if packet is aten.convolution:
            self._convolution(result, *args)
        elif packet in (aten.mm, aten.bmm):
            self._product(args[0], args[1], None)
        elif packet in (aten.addmm, aten.baddbmm):
            self._product(args[1], args[2], args[0])
        elif packet in flop_registry:
            raise ValueError(f"{packet} is a product that tracing does not know; write it with matmul or a layer")
        elif packet in VECTOR_FUNCTIONS:
            self._vector(result, args[0])
        return result

    def _vector(self, result: Any, argument: Tensor) -> None:
        """Belongs to the product before it; what comes before the first is left out, and so are counters of batches."""
        output = result[0] if isinstance(result, tuple) else result
        if self.found and output.is_floating_point():
            last = self.found[-1]
            words = max(output.numel(), argument.numel())
            self.found[-1] = replace(last, vector_words=last.vector_words + words)

    def _convolution(
        self,
        result: Tensor,
        image: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> None:
        axes = image.dim() - 2
        shape = LayerShape(
            image.shape[1],
            result.shape[1],
            tuple(result.shape[2:]),
            tuple(weight.shape[2:]),
            _each(stride, axes),
            groups,
            image.shape[0],
            tuple(image.shape[2:]),
            _each(dilation, axes),
            transposed,
        )
        self._note("convolution", shape, image, weight, bias)

    def _product(self, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
        """Of (count x) M x K and K x N; a weight on the left is a layer whose vectors are columns."""
        if _storage(left) in self._parameters and _storage(right) not in self._parameters:
            left, right = right.mT, left.mT
        count = left.shape[0] if left.dim() == 3 else 1
        m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
        if 0 in (count, m, k, n):
            return
        shape = LayerShape(count * k, count * n, groups=count, batch=m)
        self._note("linear" if _storage(right) in self._parameters else "matmul", shape, left, right, bias)

    def _note(self, kind: str, shape: LayerShape, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
        owner, covered = self._owner(right)
        needed = {Pass.FORWARD: True, Pass.INPUT_GRAD: left.requires_grad, Pass.WEIGHT_GRAD: right.requires_grad}
        passes = tuple(which for which in Pass if needed[which])
        learns_bias = bias is not None and bias.requires_grad and _storage(bias) in self._parameters
        self.found.append(Work(owner, kind, shape, passes, covered, learns_bias))

    def _owner(self, weight: Tensor) -> tuple[str, bool]:
        """The module that owns a weight, and whether it is a layer whose gradient `adagp` can supply."""
        known = self._parameters.get(_storage(weight))
        if known is None:
            return (self._where[-1][0] if self._where else ""), False
        name, _, attribute = known[0].rpartition(".")
        # A module that lends its weight without being called, as attention does its last, tells no hook what it saw.
        called = bool(self._where) and self._where[-1][0] == name
        covered = attribute == "weight" and kind_of(self._model.get_submodule(name)) is not None
        return name, covered and called and weight.requires_grad


def _storage(tensor: Tensor) -> int:
    """What a tensor and all views of it share; on the meta device nothing has an address."""
    return int(tensor.untyped_storage()._cdata)


def _each(sizes: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(sizes) * axes if len(sizes) == 1 else tuple(sizes)
