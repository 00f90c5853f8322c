"""The kernel for GPUs, like the paper's: one pass finds each channel's largest entry, another sums input patches.

The tests run it in Triton's interpreter on CPU tensors and compile it for NVIDIA and AMD. It has not run on a GPU yet,
so its speed is unknown.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from adagp.kernels.geometry import Geometry
from adagp.kernels.topk_selection import select

_ENTRIES = 16
_POSITIONS = 1024
_FAN = 128


@triton.jit
def _largest(
    grad, positions, values, channels, count, width,
    step_sample, step_channel, step_y, step_x, block: tl.constexpr,
):  # fmt: skip
    """One channel of one sample per program: the first position of the largest magnitude, and the sum."""
    program = tl.program_id(0)
    source = grad + (program // channels).to(tl.int64) * step_sample + (program % channels) * step_channel
    lanes = tl.arange(0, block)
    total = tl.zeros([block], dtype=values.dtype.element_ty)
    most = total - 1
    where = tl.zeros([block], dtype=tl.int32)
    for first in range(0, count, block):
        position = first + lanes
        inside = position < count
        value = tl.load(source + position // width * step_y + position % width * step_x, mask=inside, other=0)
        size = tl.where(inside, tl.abs(value), -1)
        where = tl.where(size > most, position, where)
        most = tl.where(size > most, size, most)
        total += value
    best = tl.max(most, axis=0)
    tl.store(positions + program, tl.min(tl.where(most == best, where, count), axis=0))
    tl.store(values + program, tl.sum(total, axis=0))


@triton.jit
def _add_patches(
    x, positions, values, out, entries, k, channels, group_channels, fan, kernel_x, taps,
    height, width, out_width, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x,
    step_sample, step_channel, step_y, step_x, at_once: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One output channel's gradient at one tap for a block of input channels per program, over all samples in order."""
    channel, tap = tl.program_id(0), tl.program_id(1)
    fans = tl.program_id(2) * block + tl.arange(0, block)
    columns = (channel // group_channels * fan + fans) * step_channel
    total = tl.zeros([block], dtype=out.dtype.element_ty)
    for first in range(0, entries, at_once):
        entry = first + tl.arange(0, at_once)
        sample = entry // k
        at = (sample * channels + channel) * k + entry % k
        position = tl.load(positions + at, mask=entry < entries, other=0).to(tl.int32)
        y = position // out_width * stride_y - pad_y + tap // kernel_x * dilation_y
        z = position % out_width * stride_x - pad_x + tap % kernel_x * dilation_x
        inside = (entry < entries) & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        value = tl.load(values + at, mask=inside, other=0)
        rows = sample.to(tl.int64) * step_sample + y * step_y + z * step_x
        mask = inside[:, None] & (fans < fan)[None, :]
        patch = tl.load(x + rows[:, None] + columns[None, :], mask=mask, other=0)
        total += tl.sum(patch * value[:, None], axis=0)
    tl.store(out + (channel * fan + fans) * taps + tap, total, mask=fans < fan)


def weight_grad(x: Tensor, grad_output: Tensor, conv: Geometry, k: int) -> Tensor:
    """The weight gradient. One program sums over all samples in order, so that the result is deterministic."""
    samples, (channels, fan) = x.shape[0], conv.weight_shape[:2]
    k = min(k, grad_output.shape[2] * grad_output.shape[3])
    positions, values = _largest_entries(grad_output) if k == 1 else select(grad_output, k)
    # As in the paper: neighbouring threads read neighbouring channels.
    x = x if x.stride(1) == 1 else x.contiguous(memory_format=torch.channels_last)
    result = torch.empty(conv.weight_shape, dtype=x.dtype, device=x.device)
    block = min(_FAN, triton.next_power_of_2(fan))
    _add_patches[(channels, conv.taps, triton.cdiv(fan, block))](
        x, positions.contiguous(), values.contiguous(), result,
        samples * k, k, channels, channels // conv.groups, fan, conv.weight_shape[3], conv.taps,
        x.shape[2], x.shape[3], grad_output.shape[3], *conv.stride, *conv.padding, *conv.dilation,
        *x.stride(), at_once=_ENTRIES, block=block,
    )  # fmt: skip
    return result


def _largest_entries(grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """`select(grad_output, 1)` in one pass."""
    samples, channels, height, width = grad_output.shape
    positions = torch.empty(samples, channels, 1, dtype=torch.int32, device=grad_output.device)
    values = torch.empty_like(positions, dtype=grad_output.dtype)
    block = min(_POSITIONS, triton.next_power_of_2(height * width))
    _largest[(samples * channels,)](
        grad_output, positions, values, channels, height * width, width, *grad_output.stride(), block=block
    )
    return positions, values
