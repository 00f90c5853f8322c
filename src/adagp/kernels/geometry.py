"""The arguments of a convolution, checked once for all kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Pair = tuple[int, int]
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Geometry:
    """A 2-d convolution; each pair is (vertical, horizontal)."""

    weight_shape: tuple[int, int, int, int]
    """Output channels, input channels of one group, kernel height, kernel width."""
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return self.weight_shape[2] * self.weight_shape[3]

    def output_size(self, size: Pair) -> Pair:
        """Height and width of the output for an input of this height and width."""
        kernel = self.weight_shape[2:]
        spans = [dilation * (extent - 1) + 1 for dilation, extent in zip(self.dilation, kernel, strict=True)]
        rows, columns = (
            (extent + 2 * padding - span) // stride + 1
            for extent, padding, span, stride in zip(size, self.padding, spans, self.stride, strict=True)
        )
        return rows, columns


def geometry(
    weight_shape: Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> Geometry:
    """The convolution with these arguments of `nn.Conv2d`; ValueError if they are impossible."""
    shape = tuple(int(extent) for extent in weight_shape)
    if len(shape) != 4 or min(shape) < 1:
        raise ValueError(
            f"weight_shape is {shape}; it must be four positive numbers: output channels, input channels per group, "
            "kernel height and width (for a Linear: its two numbers, then 1, 1)"
        )
    if groups < 1 or shape[0] % groups:
        raise ValueError(f"groups is {groups}; it must divide the {shape[0]} output channels of weight_shape")
    return Geometry(
        (shape[0], shape[1], shape[2], shape[3]),
        _pair("stride", stride, 1),
        _pair("padding", padding, 0),
        _pair("dilation", dilation, 1),
        groups,
    )


def check_tensors(x: Tensor, grad_output: Tensor, conv: Geometry) -> None:
    """Raise ValueError unless the tensors are the input and the output gradient of this convolution."""
    out_channels, channels_per_group = conv.weight_shape[:2]
    if x.dim() != 4:
        raise ValueError(f"input has shape {tuple(x.shape)}; it must be (samples, channels, height, width)")
    if x.dtype not in _DTYPES:
        raise ValueError(f"input is {x.dtype}; it must be one of {', '.join(map(str, _DTYPES))}")
    if grad_output.dtype != x.dtype:
        raise ValueError(f"grad_output is {grad_output.dtype} and input {x.dtype}; cast one to the other's type")
    if grad_output.device != x.device:
        raise ValueError(f"grad_output is on {grad_output.device} and input on {x.device}; move one to the other")
    if x.shape[1] != channels_per_group * conv.groups:
        raise ValueError(
            f"input has {x.shape[1]} channels; weight_shape {conv.weight_shape} with groups {conv.groups} "
            f"takes {channels_per_group * conv.groups}"
        )
    size = conv.output_size((x.shape[2], x.shape[3]))
    if min(size) < 1:
        raise ValueError(
            f"input of {x.shape[2]} x {x.shape[3]} is smaller than the kernel of weight_shape "
            f"{conv.weight_shape} with padding {conv.padding} and dilation {conv.dilation}"
        )
    expected = (x.shape[0], out_channels, *size)
    if tuple(grad_output.shape) != expected:
        raise ValueError(
            f"grad_output has shape {tuple(grad_output.shape)}; this input, weight_shape, stride, padding and "
            f"dilation give an output of {expected}"
        )


def _pair(name: str, value: int | Sequence[int], least: int) -> Pair:
    if isinstance(value, str):
        raise ValueError(
            f"{name} is {value!r}; give it in numbers: 'valid' is 0, and 'same' is "
            "dilation * (kernel - 1) / 2 where that is an integer (else pad the input yourself)"
        )
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or min(pair) < least:
        raise ValueError(f"{name} is {value!r}; it must be a number of at least {least}, or two of them")
    return pair[0], pair[1]
