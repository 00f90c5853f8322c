"""The tracer: every convolution and matrix product of a forward, recorded without computing anything.

The forward runs once on the meta device, which follows shapes without numbers. Products are recorded below autograd,
wherever they are made: in a layer, in attention, or by a function that borrows a layer's weight. The caller's grad mode
applies, so a tensor's `requires_grad` says which gradients training needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
# Norms, activations, pooling and sums, which a vector unit computes. Unknown functions count as nothing.
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


@dataclass(eq=False)
class Call:
    """One call of a module.

    Attributes:
        module: The module's name; empty for the model itself.
        output: What it returned, on the meta device; None if that is not a tensor.
    """

    module: str
    output: Tensor | None = None


@dataclass(frozen=True)
class Product:
    """One convolution or matrix product of a forward.

    A matrix product has an input of (M x K) and a weight of (K x N), both with a leading count if batched. Where the
    weight stands on the left, both are transposed.

    Attributes:
        kind: `convolution`, `linear`, or `matmul` for a product of two activations.
        calls: The modules in whose forward it is made, outermost first.
        weight: Name of the parameter that is its weight or a view of it; None for a computed one.
        input_shape: Shape of the input.
        weight_shape: Shape of the weight, or of the second activation.
        output_shape: Shape of the result.
        stride: Stride along each axis of a convolution.
        dilation: Dilation along each axis of a convolution.
        groups: Groups of a convolution, or the number of independent matrix products.
        transposed: Whether it is a transposed convolution.
        input_requires_grad: Whether training needs the gradient of the input.
        weight_requires_grad: Whether training needs the gradient of the weight.
        trains_bias: Whether it adds a bias that is trained.
        vector_words: Words that norms, activations, pooling and sums read between this product and the next.
        pooling: Stride and offset of the last pooling between this product and the next: `size` positions become
            `(size + offset) // stride`. Empty if there is none.
    """

    kind: str
    calls: tuple[Call, ...]
    weight: str | None
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    input_requires_grad: bool = False
    weight_requires_grad: bool = False
    trains_bias: bool = False
    vector_words: int = 0
    pooling: tuple[int, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-adds of the result."""
        if self.kind != "convolution":
            return prod(self.output_shape) * self.input_shape[-1]
        sliding = self.input_shape if self.transposed else self.output_shape
        return prod(self.weight_shape) * self.input_shape[0] * prod(sliding[2:])


@dataclass(frozen=True)
class Trace:
    """A traced forward.

    Attributes:
        products: All products, in the order in which they are made.
        calls: All calls of modules, in the order in which they begin.
    """

    products: list[Product] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def trace_forward(model: nn.Module, *inputs: Tensor) -> Trace:
    """Trace one forward.

    The model and the inputs may be on any device and are left as they are. Only the shapes and types of the inputs
    matter. The model is traced in the mode it is in, `train` or `eval`.

    Args:
        model: Any module.
        *inputs: The arguments of its forward.

    Raises:
        ValueError: If the forward cannot be followed by shapes alone; the message names the module at which it stopped.
    """
    meta = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    recorder = _Recorder({name: meta[name] for name, _ in model.named_parameters()})
    hooks = [
        hook
        for name, module in model.named_modules()
        for hook in (
            module.register_forward_pre_hook(_enter(recorder, name), prepend=True),
            module.register_forward_hook(_leave(recorder)),
        )
    ]
    try:
        arguments = tuple(torch.empty_like(tensor, device="meta") for tensor in inputs)
        # Attention as plain matrix products: the fused kernels hide theirs.
        with sdpa_kernel(SDPBackend.MATH), recorder:
            torch.func.functional_call(model, meta, arguments)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError) as error:
        name = recorder.open_calls[-1].module if recorder.open_calls else ""
        where = f"{type(model.get_submodule(name)).__name__} {name or '(the model itself)'}"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"model: cannot be traced: {where} failed on shapes alone ({reason}); check the shapes of the inputs, "
            "register constant tensors as buffers, and keep decisions that depend on values out of the forward"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return recorder.trace


def _enter(recorder: "_Recorder", name: str) -> Callable[..., None]:
    def enter(*_: object) -> None:
        call = Call(name)
        recorder.trace.calls.append(call)
        recorder.open_calls.append(call)

    return enter


def _leave(recorder: "_Recorder") -> Callable[..., None]:
    def leave(_module: nn.Module, _inputs: object, output: object) -> None:
        call = recorder.open_calls.pop()
        call.output = output.detach() if isinstance(output, Tensor) else None

    return leave


class _Recorder(TorchDispatchMode):
    """Records products below autograd, and refuses an unknown one so that none is missed."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.open_calls: list[Call] = []
        self._parameters = {_storage(tensor): name for name, tensor in parameters.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", None)
        if packet is aten.convolution:
            self._convolution(result, *args)
        elif packet in (aten.mm, aten.bmm):
            self._matmul(args[0], args[1], None)
        elif packet in (aten.addmm, aten.baddbmm):
            self._matmul(args[1], args[2], args[0])
        elif packet in flop_registry:
            raise ValueError(f"{packet} is a product that tracing does not know; write it with matmul or a layer")
        elif packet in VECTOR_FUNCTIONS:
            self._vector(result, args[0])
            if packet in (aten.max_pool2d_with_indices, aten.avg_pool2d) and self.trace.products:
                self._pooling(packet is aten.max_pool2d_with_indices, *args[1:])
        return result

    def _vector(self, result: Any, argument: Tensor) -> None:
        """Add to the product before; counters of batches, and what precedes the first product, are left out."""
        output = result[0] if isinstance(result, tuple) else result
        products = self.trace.products
        if products and output.is_floating_point():
            words = max(output.numel(), argument.numel())
            products[-1] = replace(products[-1], vector_words=products[-1].vector_words + words)

    def _pooling(
        self,
        of_maxima: bool,
        window: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        *rest: Any,
    ) -> None:
        """Note a pooling that is the same along both axes; of maxima, a dilation comes before the rounding."""
        dilation = _per_axis(rest[0], 2) if of_maxima and rest else (1, 1)
        rounds_up = any(rest[1:2] if of_maxima else rest[:1])
        steps = _per_axis(stride or window, 2)
        reaches = [near * (taps - 1) + 1 for near, taps in zip(dilation, _per_axis(window, 2), strict=True)]
        offsets = {
            step * (1 + rounds_up) - rounds_up + 2 * pad - reach
            for step, pad, reach in zip(steps, _per_axis(padding, 2), reaches, strict=True)
        }
        if len({*steps}) == len(offsets) == 1 and steps[0] > 1:
            products = self.trace.products
            products[-1] = replace(products[-1], pooling=(steps[0], *offsets))

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
        self._record(
            "convolution",
            image,
            weight,
            bias,
            tuple(result.shape),
            stride=_per_axis(stride, axes),
            dilation=_per_axis(dilation, axes),
            groups=groups,
            transposed=transposed,
        )

    def _matmul(self, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
        """A parameter on the left is a layer whose vectors are columns."""
        if _storage(left) in self._parameters and _storage(right) not in self._parameters:
            left, right = right.mT, left.mT
        kind = "linear" if _storage(right) in self._parameters else "matmul"
        count = left.shape[0] if left.dim() == 3 else 1
        if left.numel() and right.numel():
            self._record(kind, left, right, bias, (*left.shape[:-1], right.shape[-1]), groups=count)

    def _record(
        self,
        kind: str,
        layer_input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output_shape: tuple[int, ...],
        **geometry: Any,
    ) -> None:
        self.trace.products.append(
            Product(
                kind,
                tuple(self.open_calls),
                self._parameters.get(_storage(weight)),
                tuple(layer_input.shape),
                tuple(weight.shape),
                output_shape,
                **geometry,
                input_requires_grad=layer_input.requires_grad,
                weight_requires_grad=weight.requires_grad,
                trains_bias=bias is not None and bias.requires_grad and _storage(bias) in self._parameters,
            )
        )


def _storage(tensor: Tensor) -> int:
    """An identity that a tensor shares with its views; meta tensors have no address."""
    return int(tensor.untyped_storage()._cdata)


def _per_axis(sizes: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(sizes) * axes if len(sizes) == 1 else tuple(sizes)
