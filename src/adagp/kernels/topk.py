"""The entry point: checks the arguments, chooses the fastest available kernel, calls it."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from adagp.kernels import topk_compiled, topk_gather, topk_reference
from adagp.kernels.geometry import Geometry, check_tensors, geometry

GPUS = ("cuda", "xpu")
"""Device types that Triton compiles for; AMD's is `cuda` too."""
Kernel = Callable[[Tensor, Tensor, Geometry, int], Tensor]


def _triton(x: Tensor, grad_output: Tensor, conv: Geometry, k: int) -> Tensor:
    from adagp.kernels import topk_triton  # imports Triton, which takes a second and may be absent

    return topk_triton.weight_grad(x, grad_output, conv, k)


_KERNELS: dict[str, Kernel] = {
    "reference": topk_reference.weight_grad,
    "gather": topk_gather.weight_grad,
    "compiled": topk_compiled.weight_grad,
    "triton": _triton,
}


@torch.no_grad()
def topk_weight_grad(
    input: Tensor,  # noqa: A002
    grad_output: Tensor,
    weight_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    k: int = 1,
) -> Tensor:
    """The gradient of a Conv2d's weight from k output gradients per sample and channel.

    Per sample and output channel, the k entries of `grad_output` of largest magnitude are kept and scaled so that their
    sum is the channel's. With k = 1 this is algorithm 1 of the paper, and with every position the exact gradient. Kept
    entries that nearly cancel (their sum is at most a tenth of the sum of their magnitudes) are not scaled, because the
    factor would explode. The missing sum is divided equally among them instead.

    Use a small k: every entry costs one patch of the input, and dense convolutions are well tuned. On a CPU, small
    layers were slower than dense from k = 4 on, large ones from k = 16.

    A Linear is a convolution with a 1 x 1 kernel over `(samples, features, positions, 1)`.

    Args:
        input: `(samples, channels, height, width)`, in any memory layout.
        grad_output: The gradient at the layer's output, with the dtype and device of `input`.
        weight_shape: Output channels, input channels per group, kernel height and width.
        stride: As in `nn.Conv2d`.
        padding: As in `nn.Conv2d`, but a name such as 'same' is refused.
        dilation: As in `nn.Conv2d`.
        groups: As in `nn.Conv2d`.
        k: Entries kept per sample and channel; a larger k than there are positions keeps all.

    Returns:
        The gradient, in the shape of the weight. Its dtype is the input's, or float32 for half precision, in which a
        sum over a batch would lose too much: cast it to the weight's.
    """
    conv = geometry(weight_shape, stride, padding, dilation, groups)
    check_tensors(input, grad_output, conv)
    if k < 1:
        raise ValueError(f"k is {k}; at least one entry per sample and channel must be kept")
    sum_dtype = torch.promote_types(input.dtype, torch.float32)
    x, grad_output = input.to(sum_dtype), grad_output.to(sum_dtype)
    if not x.shape[0]:
        return x.new_zeros(conv.weight_shape)
    return _KERNELS[choose_topk(grad_output, k=k)](x, grad_output, conv, k)


def choose_topk(grad_output: Tensor, *, k: int = 1) -> str:
    """The name of the kernel that `topk_weight_grad` uses for such a gradient (see `topk_backends`)."""
    positions = grad_output.shape[2] * grad_output.shape[3]
    if k >= positions:
        return "reference"  # every entry is kept, so a dense convolution is fastest
    if grad_output.device.type == "cpu" and not topk_compiled.why_not():
        return "compiled"
    if grad_output.device.type in GPUS and not _why_no_triton():
        return "triton"
    return "gather"


def topk_backends() -> dict[str, str]:
    """The kernels by name, each with the reason why it cannot be used here, or an empty string.

    `reference` convolves densely, `gather` is plain torch, `compiled` is C++ for a CPU, `triton` is for GPUs. The first
    call may compile.
    """
    return {"reference": "", "gather": "", "compiled": topk_compiled.why_not(), "triton": _why_no_triton()}


def _why_no_triton() -> str:
    if find_spec("triton") is None:
        return "Triton is not installed; pip install triton"
    if not any(torch.get_device_module(device).is_available() for device in GPUS):
        return f"there is no device of type {' or '.join(GPUS)}"
    return ""
