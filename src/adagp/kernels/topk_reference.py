"""The definition: a dense convolution of the sparsified output gradient. Slow; every kernel is tested against it."""

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from adagp.kernels.geometry import Geometry
from adagp.kernels.topk_selection import select


def sparsify(grad_output: Tensor, k: int) -> Tensor:
    """`grad_output` with zeros in place of all but the kept entries; unchanged if k covers every position."""
    if k >= grad_output.shape[2] * grad_output.shape[3]:
        return grad_output
    positions, values = select(grad_output, k)
    return torch.zeros_like(grad_output).flatten(2).scatter(2, positions, values).view_as(grad_output)


def weight_grad(x: Tensor, grad_output: Tensor, conv: Geometry, k: int) -> Tensor:
    """The weight gradient by torch's own convolution; exact if k covers every position."""
    result: Tensor = conv2d_weight(
        x, conv.weight_shape, sparsify(grad_output, k), conv.stride, conv.padding, conv.dilation, conv.groups
    )
    return result
