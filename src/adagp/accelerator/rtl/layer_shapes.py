"""Layers of networks as the compiler takes them."""

from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.shapes import LayerShape


def convolution(shape: LayerShape) -> Convolution:
    """A layer as the compiler takes it.

    Raises:
        ValueError: If the RTL cannot run it.
    """
    if shape.transposed:
        raise ValueError("is a transposed convolution, which the RTL does not run; choose another layer")
    if len(shape.out) != 2:
        raise ValueError(f"has {len(shape.out)} spatial axes, and the RTL runs two; choose another layer")
    around = [
        (out - 1) * step + far * (taps - 1) + 1 - size
        for out, step, far, taps, size in zip(
            shape.out, shape.stride, shape.dilation, shape.kernel, shape.image, strict=True
        )
    ]
    padding = tuple(max(0, -(-pad // 2)) for pad in around)
    image, kernel, stride, both, dilation = (
        (side[0], side[1]) for side in (shape.image, shape.kernel, shape.stride, padding, shape.dilation)
    )
    found = Convolution(shape.c_in, shape.c_out, image, kernel, stride, both, dilation, shape.groups)
    if found.out != shape.out:
        raise ValueError(f"has an output of {shape.out}, which no equal padding gives; choose another layer")
    return found
