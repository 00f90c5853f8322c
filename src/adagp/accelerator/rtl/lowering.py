"""Convolutions as matrix products, for each pass of a layer.

A linear layer is a convolution whose images have one pixel. Grouped convolutions are not supported.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagp.accelerator.shapes import LayerShape

Numbers = NDArray[Any]
"""Integers, or bounds of their errors: they are only moved."""


@dataclass(frozen=True)
class Convolution:
    """The sizes of a layer.

    Attributes:
        c_in: Input channels.
        c_out: Filters.
        image: Height and width of the input.
        kernel: Height and width of a filter.
        stride: Stride along both axes.
        padding: Padding along both axes.
    """

    c_in: int
    c_out: int
    image: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        """Refuse a layer without output."""
        if min(self.out) < 1:
            raise ValueError(
                f"kernel={self.kernel[0]}x{self.kernel[1]}: is larger than image={self.image[0]}x{self.image[1]} with "
                f"padding={self.padding}; choose a smaller kernel or more padding"
            )

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        high, wide = (
            (size + 2 * self.padding - taps) // self.stride + 1
            for size, taps in zip(self.image, self.kernel, strict=True)
        )
        return high, wide

    @property
    def row(self) -> int:
        """Weights of one filter."""
        return self.c_in * self.kernel[0] * self.kernel[1]

    def shape(self, batch: int) -> LayerShape:
        """The layer as the accelerator model sees it."""
        strides = (self.stride, self.stride)
        return LayerShape(
            self.c_in, self.c_out, self.out, self.kernel, strides, batch=batch, image=self.image, dilation=(1, 1)
        )

    def patches(self, images: Numbers) -> Numbers:
        """(batch, c_in, height, width) to (batch x output pixels, row): the inputs of the forward."""
        around = ((0, 0), (0, 0), (self.padding, self.padding), (self.padding, self.padding))
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(images, around), self.kernel, (2, 3))
        chosen = windows[:, :, :: self.stride, :: self.stride]
        return chosen.transpose(0, 2, 3, 1, 4, 5).reshape(-1, self.row)

    def filters(self, weight: Numbers) -> Numbers:
        """(c_out, c_in, taps) to (row, c_out): the weights of the forward."""
        return weight.reshape(self.c_out, self.row).T

    def pixels(self, outputs: Numbers) -> Numbers:
        """(batch, c_out, height, width) to (batch x output pixels, c_out): how the forward's results lie."""
        return outputs.transpose(0, 2, 3, 1).reshape(-1, outputs.shape[1])

    def images(self, pixels: Numbers) -> Numbers:
        """The reverse of `pixels`, for the output."""
        return pixels.reshape(-1, *self.out, pixels.shape[1]).transpose(0, 3, 1, 2)

    def spread(self, grads: Numbers) -> Numbers:
        """The output's gradients, (batch x input pixels, c_out x taps): the inputs of the input gradient.

        They are set apart by the stride, with zeros between them.
        """
        room = [size + taps + 2 * self.padding for size, taps in zip(self.image, self.kernel, strict=True)]
        apart = np.zeros((*grads.shape[:2], *room), dtype=grads.dtype)
        top, left = (taps - 1 for taps in self.kernel)
        high, wide = ((size - 1) * self.stride + 1 for size in self.out)
        apart[:, :, top : top + high : self.stride, left : left + wide : self.stride] = grads
        rows, columns = (
            slice(self.padding, self.padding + size + taps - 1)
            for size, taps in zip(self.image, self.kernel, strict=True)
        )
        cut = apart[:, :, rows, columns]
        windows = np.lib.stride_tricks.sliding_window_view(cut, self.kernel, (2, 3))
        return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, self.c_out * self.kernel[0] * self.kernel[1])

    def turned(self, weight: Numbers) -> Numbers:
        """(c_out, c_in, taps) to (c_out x taps, c_in), taps in reverse: the weights of the input gradient."""
        return weight[:, :, ::-1, ::-1].transpose(0, 2, 3, 1).reshape(-1, self.c_in)
