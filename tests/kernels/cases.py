"""Random convolutions for the kernel tests, and the paper's algorithm 1 written as it stands there."""

import os
import shutil
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from adagp.kernels.geometry import Geometry, geometry

# Where there is a compiler but no kernel comes of it, the tests run, and fail.
needs_compiler = pytest.mark.skipif(
    not (os.environ.get("CXX") or any(map(shutil.which, ("c++", "g++", "clang++")))),
    reason="there is no C++ compiler: the compiled kernel is NOT tested here",
)
LAYOUTS = ("contiguous", "channels-last", "strided", "expanded")


@dataclass(frozen=True)
class Case:
    """One convolution with its tensors, and how many entries to keep."""

    conv: Geometry
    input: Tensor
    grad_output: Tensor
    k: int

    @property
    def arguments(self) -> dict[str, object]:
        """What `topk_weight_grad` takes besides the tensors."""
        conv = self.conv
        return {
            "weight_shape": conv.weight_shape,
            "stride": conv.stride,
            "padding": conv.padding,
            "dilation": conv.dilation,
            "groups": conv.groups,
            "k": self.k,
        }


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values in another memory layout; `expanded` alone changes them: every entry becomes the first."""
    if layout == "channels-last":
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        # Every other entry of a permuted tensor; NaN lies between them, so that reading a neighbour is noticed.
        view = tensor.new_full([2 * tensor.shape[i] for i in (3, 1, 0, 2)], torch.nan)[(slice(1, None, 2),) * 4]
        return view.permute(2, 1, 3, 0).copy_(tensor)
    if layout == "expanded":
        return tensor.flatten()[0].expand_as(tensor)
    return tensor.contiguous()


@st.composite
def cases(draw: st.DrawFn, layouts: tuple[str, ...] = LAYOUTS[:3], max_channels: int = 5) -> Case:
    """Small convolutions of every kind; some gradients are small integers, so that ties and zeros are common."""
    groups = draw(st.integers(1, 3))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    shape = (groups * draw(st.integers(1, 3)), draw(st.integers(1, max_channels)), *kernel)
    pairs = [draw(st.tuples(st.integers(low, 3), st.integers(low, 3))) for low in (1, 0, 1)]
    conv = geometry(shape, *pairs, groups)
    least = [max(1, d * (extent - 1) + 1 - 2 * p) for d, extent, p in zip(pairs[2], kernel, pairs[1], strict=True)]
    size = [low + draw(st.integers(0, 6)) for low in least]
    samples = draw(st.integers(1, 4))
    out = conv.output_size((size[0], size[1]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    x = torch.randn(samples, groups * shape[1], *size, generator=generator, dtype=dtype)
    if draw(st.booleans()):
        grad = torch.randint(-3, 4, (samples, shape[0], *out), generator=generator).to(dtype)
    else:
        grad = torch.randn(samples, shape[0], *out, generator=generator, dtype=dtype)
    x = lay_out(x, draw(st.sampled_from(layouts)))
    grad = lay_out(grad, draw(st.sampled_from((*layouts, "expanded"))))
    return Case(conv, x, grad, draw(st.integers(1, out[0] * out[1] + 2)))


def kept_by_hand(channel: list[float], k: int) -> dict[int, float]:
    """Position and value of the entries kept of one channel, in Python's own numbers."""
    order = sorted(range(len(channel)), key=lambda position: (-abs(channel[position]), position))[:k]
    total, kept = sum(channel), sum(channel[position] for position in order)
    if len(order) == len(channel):
        return {position: channel[position] for position in order}
    if 10 * abs(kept) <= sum(abs(channel[position]) for position in order):
        return {position: channel[position] + (total - kept) / len(order) for position in order}
    return {position: channel[position] * (total / kept) for position in order}


def by_hand(case: Case) -> Tensor:
    """Algorithm 1 with k entries, one multiplication at a time."""
    conv = case.conv
    channels, fan, kernel_height, kernel_width = conv.weight_shape
    samples, _, height, width = case.input.shape
    x, grad = case.input.tolist(), case.grad_output.flatten(2).tolist()
    result = torch.zeros(conv.weight_shape, dtype=torch.float64).tolist()
    for c in range(channels):
        first = c // (channels // conv.groups) * fan
        for n in range(samples):
            for position, value in kept_by_hand(grad[n][c], case.k).items():
                row, column = divmod(position, case.grad_output.shape[3])
                for i in range(kernel_height):
                    y = row * conv.stride[0] - conv.padding[0] + i * conv.dilation[0]
                    for j in range(kernel_width):
                        z = column * conv.stride[1] - conv.padding[1] + j * conv.dilation[1]
                        if 0 <= y < height and 0 <= z < width:
                            for ci in range(fan):
                                result[c][ci][i][j] += value * x[n][first + ci][y][z]
    return torch.tensor(result, dtype=torch.float64)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Equal but for rounding, which grows with the largest entry, not with each entry's own size."""
    assert actual.shape == expected.shape
    epsilon = torch.finfo(actual.dtype).eps
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=500 * epsilon * scale)
