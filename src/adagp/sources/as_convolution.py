"""Layers that slide one weight over positions, seen as 2-d convolutions, as the kernels want them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from adagp.layers import Layer


@dataclass(frozen=True)
class AsConvolution:
    """Input and `grad_output` of one call, both `(samples, channels, height, width)` and of one type.

    Attributes:
        image: The input; where the padding is not of zeros, or not the same on both sides, it is part of it.
        grad_output: The gradient at the output.
        weight_shape: Four numbers.
        options: `stride`, `padding`, `dilation` and `groups`.
    """

    image: Tensor
    grad_output: Tensor
    weight_shape: tuple[int, ...]
    options: Mapping[str, Any]


def as_convolution(layer: Layer, layer_input: Tensor, grad_output: Tensor) -> AsConvolution:
    """One call of a Conv1d, Conv2d or Linear; nothing is moved unless padding or autocast ask for it."""
    module, shape = layer.module, tuple(layer.weight.shape)
    options: Mapping[str, Any] = {}
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        image, grad_output, options = _convolution(module, layer_input, grad_output)
        if isinstance(module, nn.Conv1d):
            shape = (*shape[:2], 1, *shape[2:])
    else:
        image, grad_output, shape = _as_image(layer_input), _as_image(grad_output), (*shape, 1, 1)
    common = torch.promote_types(image.dtype, grad_output.dtype)  # under autocast they differ
    return AsConvolution(image.to(common), grad_output.to(common), shape, options)


def _convolution(
    module: nn.Conv1d | nn.Conv2d, image: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor, Mapping[str, Any]]:
    """Input and `grad_output` of a convolution, with a batch and explicit padding, and the convolution's options."""
    if image.dim() == module.weight.dim() - 1:
        image, grad_output = image[None], grad_output[None]
    padding: Any = module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        image, padding = nn.functional.pad(image, module._reversed_padding_repeated_twice, mode), 0
    options = {"stride": module.stride, "padding": padding, "dilation": module.dilation}
    if isinstance(module, nn.Conv1d):
        image, grad_output = image[:, :, None], grad_output[:, :, None]
        fill = {"stride": 1, "padding": 0, "dilation": 1}
        options = {name: (fill[name], value if isinstance(value, int) else value[0]) for name, value in options.items()}
    return image, grad_output, {**options, "groups": module.groups}


def _as_image(tensor: Tensor) -> Tensor:
    """`(batch, *positions, features)` as `(batch, features, positions, 1)`, without moving anything."""
    batched = tensor if tensor.dim() > 1 else tensor[None]
    return batched.reshape(len(batched), prod(batched.shape[1:-1]), batched.shape[-1]).transpose(1, 2)[..., None]
