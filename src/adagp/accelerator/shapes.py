"""A layer as an accelerator sees it: its sizes, and its three matrix products in training.

A convolution is lowered to a matrix product, (M x K) by (K x N), one per group. With `pixels` for the positions of
one sample and `taps` for the positions of a kernel, each group of a layer has:

- forward: M = batch x output pixels, N = filters, K = input channels x taps;
- input gradient: M = batch x input pixels, N = input channels, K = filters x taps;
- weight gradient: M = input channels x taps, N = filters, K = batch x output pixels.

A linear layer is a convolution of one pixel and one tap; its batch is the number of its input vectors. A product of two
activations, as in attention, has one group per pair of matrices, and the second of the pair takes the place of the
weights.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from math import prod

MOST = 10**9
"""The largest number that is accepted for any size or count; more is a mistake."""


def require_count(name: str, value: int, most: int = MOST) -> None:
    """Raise ValueError for a count that is too small or too large."""
    if not 1 <= value <= most:
        raise ValueError(f"{name}={value}: must be at least 1 and at most {most:,}")


def require_known(name: str, value: str, known: Collection[str]) -> None:
    """Raise ValueError for an unknown name, with the known ones."""
    if value not in known:
        raise ValueError(f"{name}={value!r}: is unknown; choose one of {', '.join(known)}")


class Pass(Enum):
    """One of the three products of a layer in training."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"


@dataclass(frozen=True)
class Gemm:
    """`count` independent products of an (m x k) by a (k x n) matrix."""

    m: int
    n: int
    k: int
    count: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all products."""
        return self.count * self.m * self.n * self.k


MOST_WORDS = 10**12
"""The largest tensor: far beyond real layers, while 64 bits still hold every sum of the row-stationary mapping."""


@dataclass(frozen=True)
class LayerShape:
    """The sizes of one layer and of the batch it is given.

    Attributes:
        c_in: Input channels, of all groups together.
        c_out: Output channels, of all groups together.
        out: Positions of the output along each axis, such as (height, width).
        kernel: Taps along each axis.
        stride: Stride along each axis.
        groups: Groups of channels; `c_in` for a depthwise convolution.
        batch: Samples; for a linear layer, vectors.
        image: Positions of the input along each axis; by default `out x stride`, which padding of half a kernel gives.
        dilation: Distance of the taps along each axis.
        transposed: Whether this is a transposed convolution: the input slides over the output.
    """

    c_in: int
    c_out: int
    out: tuple[int, ...] = (1, 1)
    kernel: tuple[int, ...] = (1, 1)
    stride: tuple[int, ...] = ()
    groups: int = 1
    batch: int = 1
    image: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    transposed: bool = False

    def __post_init__(self) -> None:
        """Fill in defaults that depend on other sizes, and refuse impossible sizes."""
        ones = (1,) * len(self.out)
        object.__setattr__(self, "stride", self.stride or ones)
        object.__setattr__(self, "dilation", self.dilation or ones)
        if not self.image:
            same = tuple(size * step for size, step in zip(self.out, self.stride, strict=False))
            object.__setattr__(self, "image", same)
        for name in ("c_in", "c_out", "groups", "batch"):
            require_count(name, getattr(self, name))
        for name in ("out", "kernel", "stride", "image", "dilation"):
            sizes = getattr(self, name)
            if len(sizes) != len(self.out):
                raise ValueError(f"{name}={_by(sizes)}: needs one size for each axis of out={_by(self.out)}")
            if not sizes or min(sizes) < 1 or max(sizes) > MOST:
                raise ValueError(f"{name}={_by(sizes)}: every size must be at least 1 and at most {MOST:,}")
        for name in ("c_in", "c_out"):
            if getattr(self, name) % self.groups:
                raise ValueError(
                    f"groups={self.groups}: does not divide {name}={getattr(self, name)}; "
                    "choose a number that divides both channels"
                )
        words = max(self.input_words, self.weight_words, self.output_words)
        if words > MOST_WORDS:
            raise ValueError(
                f"batch={self.batch}, c_in={self.c_in}, c_out={self.c_out}: make a tensor of {words:,} words, and at "
                f"most {MOST_WORDS:,} can be simulated; lower the batch or the sizes"
            )

    @property
    def input_words(self) -> int:
        """Words of the whole batch's inputs, without padding."""
        return self.batch * self.c_in * prod(self.image)

    @property
    def weight_words(self) -> int:
        """Words of the weights, without the bias."""
        return self.c_in * self.c_out * prod(self.kernel) // self.groups

    @property
    def output_words(self) -> int:
        """Words of the whole batch's outputs."""
        return self.batch * self.c_out * prod(self.out)

    @property
    def words(self) -> int:
        """Words of all three tensors. A pass reads two of them, or their gradients, and writes the third or its own."""
        return self.input_words + self.weight_words + self.output_words

    def gemm(self, which: Pass) -> Gemm:
        """The matrix product of a pass.

        The lowered input gradient of a strided layer has zeros between the output gradients. Its multiply-accumulates
        include products with these zeros.
        """
        if self.transposed:
            return self.adjoint().gemm(ADJOINT_PASS[which])
        c_in, c_out, taps = self.c_in // self.groups, self.c_out // self.groups, prod(self.kernel)
        pixels_out, pixels_in = self.batch * prod(self.out), self.batch * prod(self.image)
        match which:
            case Pass.FORWARD:
                return Gemm(pixels_out, c_out, c_in * taps, self.groups)
            case Pass.INPUT_GRAD:
                return Gemm(pixels_in, c_in, c_out * taps, self.groups)
            case Pass.WEIGHT_GRAD:
                return Gemm(c_in * taps, c_out, pixels_out, self.groups)

    def adjoint(self) -> "LayerShape":
        """The layer whose input gradient is this one's forward, and the reverse."""
        return LayerShape(
            self.c_out,
            self.c_in,
            self.image,
            self.kernel,
            self.stride,
            self.groups,
            self.batch,
            self.out,
            self.dilation,
            not self.transposed,
        )


ADJOINT_PASS = {
    Pass.FORWARD: Pass.INPUT_GRAD,
    Pass.INPUT_GRAD: Pass.FORWARD,
    Pass.WEIGHT_GRAD: Pass.WEIGHT_GRAD,
}
"""Which pass of the adjoint a pass of a transposed convolution is."""


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
