"""The steps of a sampled weight gradient in plain torch, for any device."""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from adagp.kernels.geometry import Geometry
from adagp.kernels.sampling import Draw, Scored


def score(x: Tensor, grad_output: Tensor, conv: Geometry, own_means: bool) -> Scored:
    """The score of every position; each sample has a mean of its own, or all have one in common."""
    means = x.mean((2, 3)) if own_means else x.mean((0, 2, 3))[None]
    squares = (x - means[:, :, None, None]).square_().sum(1, keepdim=True)
    # The padding is 0, so the mean is all that is left of it.
    beyond = means.square().sum(1)[:, None, None, None]
    ones = x.new_ones(1, 1, *conv.weight_shape[2:])
    patches = conv2d(squares - beyond, ones, None, conv.stride, conv.padding, conv.dilation) + beyond * conv.taps
    sizes = grad_output.square().sum(1, keepdim=True)
    return Scored((patches.clamp_min_(0) * sizes).sqrt_().flatten(), means, grad_output.sum((2, 3)))


def sum_rows(x: Tensor, grad_output: Tensor, conv: Geometry, drawn: Draw) -> tuple[Tensor, Tensor]:
    """The weighted sum of the drawn rows in the shape of the weight, and of `grad_output` alone by samples."""
    positions, (out, fan, taps_y, taps_x) = grad_output[0, 0].numel(), conv.weight_shape
    grads = grad_output.permute(0, 2, 3, 1).reshape(-1, out).index_select(0, drawn.rows)
    grads.mul_(drawn.weights.to(grads.dtype)[:, None])
    patches = _patches(x, conv, drawn.rows // positions, drawn.rows % positions, grad_output.shape[3])
    by_group = patches.view(len(grads), conv.taps, conv.groups, fan).permute(2, 0, 1, 3).flatten(2)
    total = grads.view(-1, conv.groups, out // conv.groups).permute(1, 2, 0) @ by_group
    totals = grads.new_zeros(len(x), out).index_add_(0, drawn.rows // positions, grads)
    return total.view(out, taps_y, taps_x, fan).permute(0, 3, 1, 2), totals


def _patches(x: Tensor, conv: Geometry, samples: Tensor, positions: Tensor, out_width: int) -> Tensor:
    """The input at every tap of these positions, `(rows * taps, channels)`."""
    pad_y, pad_x = conv.padding
    padded = pad(x, (pad_x, pad_x, pad_y, pad_y)) if pad_y or pad_x else x
    height, width = padded.shape[2:]
    table = padded.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    line = samples * height + positions // out_width * conv.stride[0]
    first = line * width + positions % out_width * conv.stride[1]
    taps_y = torch.arange(conv.weight_shape[2], device=x.device)[:, None] * conv.dilation[0] * width
    taps_x = torch.arange(conv.weight_shape[3], device=x.device) * conv.dilation[1]
    return table.index_select(0, (first[:, None] + (taps_y + taps_x).flatten()).flatten())
