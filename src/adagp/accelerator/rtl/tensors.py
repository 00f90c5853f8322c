"""Tensors in DRAM: where their words are, and a layer's sizes."""

from dataclasses import dataclass, replace
from functools import cached_property

from adagp.accelerator.shapes import LayerShape


@dataclass(frozen=True)
class Convolution:
    """The sizes of a layer; a linear layer is a convolution of one pixel and one tap.

    Attributes:
        c_in: Input channels of all groups.
        c_out: Filters of all groups.
        image: Height and width of the input.
        kernel: Height and width of a filter.
        stride: Stride along both axes.
        padding: Padding along both axes.
        dilation: Distance of the taps along both axes.
        groups: Groups of channels.
    """

    c_in: int
    c_out: int
    image: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        """Refuse a layer without output, and groups that do not divide the channels."""
        if min(self.out) < 1:
            raise ValueError(
                f"kernel={self.kernel[0]}x{self.kernel[1]}: is larger than image={self.image[0]}x{self.image[1]} with "
                f"padding={self.padding[0]}x{self.padding[1]}; choose a smaller kernel or more padding"
            )
        if self.c_in % self.groups or self.c_out % self.groups:
            raise ValueError(f"groups={self.groups}: does not divide c_in={self.c_in} and c_out={self.c_out}")

    @cached_property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        high, wide = (
            (size + 2 * pad - far * (taps - 1) - 1) // step + 1
            for size, taps, step, pad, far in zip(
                self.image, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return high, wide

    @property
    def taps(self) -> int:
        """Positions of a filter."""
        return self.kernel[0] * self.kernel[1]

    @property
    def row(self) -> int:
        """Weights of one filter."""
        return self.c_in // self.groups * self.taps

    @property
    def group(self) -> "Convolution":
        """One group alone."""
        return replace(self, c_in=self.c_in // self.groups, c_out=self.c_out // self.groups, groups=1)

    def shape(self, batch: int) -> LayerShape:
        """The layer as the accelerator model sees it."""
        return LayerShape(
            self.c_in, self.c_out, self.out, self.kernel, self.stride, self.groups, batch, self.image, self.dilation
        )


@dataclass(frozen=True)
class Images:
    """Images in DRAM whose channels follow each other.

    Attributes:
        base: Address of the first word.
        sample: Words from one sample to the next.
        row: Words from one row of pixels to the next.
        pixel: Words from one pixel to the next.
    """

    base: int
    sample: int
    row: int
    pixel: int

    @classmethod
    def dense(cls, base: int, channels: int, size: tuple[int, int]) -> "Images":
        """Images without gaps."""
        return cls(base, size[0] * size[1] * channels, size[1] * channels, channels)

    def at(self, sample: int, y: int, x: int, channel: int = 0) -> int:
        """Address of a word; pixels may lie outside of the image."""
        return self.base + sample * self.sample + y * self.row + x * self.pixel + channel

    def channel(self, first: int) -> "Images":
        """The same from a channel on."""
        return replace(self, base=self.base + first)


@dataclass(frozen=True)
class Filters:
    """Weights in DRAM, (taps, k, n); either the k or the n of a tap follow each other.

    Attributes:
        base: Address of the first word.
        tap: Words from one tap to the next.
        k: Words from one summed channel to the next.
        n: Words from one result channel to the next.
    """

    base: int
    tap: int
    k: int
    n: int

    @classmethod
    def dense(cls, base: int, k: int, n: int) -> "Filters":
        """Weights of a forward without gaps: (taps, input channels, filters)."""
        return cls(base, k * n, n, 1)

    def turned(self, taps: int) -> "Filters":
        """The same weights for an input gradient: taps in reverse, channels exchanged."""
        return Filters(self.base + (taps - 1) * self.tap, -self.tap, self.n, self.k)
