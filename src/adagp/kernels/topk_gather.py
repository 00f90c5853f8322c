"""The portable kernel, faster than a convolution: `embedding_bag` gathers and sums input rows.

A row holds the input channels of one group at one pixel. For one output channel and one kernel tap, each kept entry
selects one row. The sum of the rows of all samples, weighted by the entries, is the gradient at that tap.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from adagp.kernels.geometry import Geometry
from adagp.kernels.topk_selection import select


def weight_grad(x: Tensor, grad_output: Tensor, conv: Geometry, k: int) -> Tensor:
    """The weight gradient by gathering rows, on any device of torch."""
    samples, (channels, fan, kernel_height, kernel_width) = x.shape[0], conv.weight_shape
    (stride_y, stride_x), (dilation_y, dilation_x) = conv.stride, conv.dilation
    pad_y, pad_x = conv.padding
    # Padding with zeros avoids tests for borders. An unpadded convolution needs no copy.
    padded = pad(x, (pad_x, pad_x, pad_y, pad_y)) if pad_y or pad_x else x
    height, width = padded.shape[2:]
    table = padded.permute(0, 2, 3, 1).reshape(samples * height * width * conv.groups, fan)

    positions, values = select(grad_output, k)  # (samples, channels, kept)
    rows = positions.div(grad_output.shape[3], rounding_mode="floor") * stride_y
    columns = positions.remainder(grad_output.shape[3]) * stride_x
    device = x.device
    sample = torch.arange(samples, device=device).view(-1, 1, 1)
    pixels = (sample * height + rows) * width + columns
    taps_y = torch.arange(kernel_height, device=device).view(-1, 1) * dilation_y
    taps = (taps_y * width + torch.arange(kernel_width, device=device) * dilation_x).view(1, -1, 1)
    group = torch.arange(channels, device=device).div(channels // conv.groups, rounding_mode="floor").view(-1, 1, 1)

    bags = (channels * conv.taps, samples * positions.shape[2])
    wanted = (pixels.permute(1, 0, 2).reshape(channels, 1, -1) + taps) * conv.groups + group
    weights = values.permute(1, 0, 2).reshape(channels, 1, -1).expand_as(wanted)
    sums = embedding_bag(wanted.reshape(bags), table, mode="sum", per_sample_weights=weights.reshape(bags))
    return sums.view(channels, kernel_height, kernel_width, fan).permute(0, 3, 1, 2)
