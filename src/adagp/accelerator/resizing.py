"""A network on smaller samples: the sizes of its layers follow from those at full size.

A network is a list of products. A convolution's padding follows from its sizes. A size that no product before it has is
that of the last pooling.
"""

from collections.abc import Sequence
from dataclasses import replace

from adagp.accelerator.shapes import LayerShape
from adagp.accelerator.workload import LayerOp


def resize(ops: Sequence[LayerOp], scale: float) -> list[LayerOp]:
    """The operations of the same batch with samples at a fraction of their size.

    Raises:
        ValueError: If the network has products of two activations: attention sees tokens, not positions of an image.
            Or if it does not begin with images, or a layer would have no position left.
    """
    if scale == 1:
        return list(ops)
    attention = next((op.name for op in ops if op.kind == "matmul"), None)
    if attention is not None:
        raise ValueError(
            f"scale={scale:g}: {attention!r} multiplies activations, and coarse batches are modelled for convolutional "
            "networks only: choose another schedule, or another network"
        )
    if not ops or max(ops[0].shape.image) == 1:
        raise ValueError(f"scale={scale:g}: the network begins with a product of one position; give it images")
    smaller = [{size: max(round(size * scale), 1)} for size in ops[0].shape.image]  # as `adagp.coarse.size`
    found = []
    pooling: tuple[int, ...] = ()
    for op in ops:
        shape = _resized(op, scale, smaller, pooling)
        words = op.vector_words * shape.output_words // op.shape.output_words
        found.append(replace(op, shape=shape, vector_words=words))
        pooling = op.pooling or pooling
    return found


def _resized(op: LayerOp, scale: float, smaller: list[dict[int, int]], pooling: tuple[int, ...]) -> LayerShape:
    """The shape of one operation; `smaller` has what became of every size so far along each axis."""
    shape = op.shape
    known = [*smaller, *smaller[-1:] * len(shape.image)]  # a linear layer after Conv1d has one axis more
    image = tuple(_seen(size, known[axis], pooling) for axis, size in enumerate(shape.image))
    out = tuple(_out(shape, axis, size) for axis, size in enumerate(image))
    if min(out) < 1:
        raise ValueError(
            f"scale={scale:g}: leaves {'x'.join(map(str, image))} positions for layer {op.name}, too few for its "
            f"kernel of {'x'.join(map(str, shape.kernel))}: choose a larger scale, or another network"
        )
    for axis, size in enumerate(out):
        known[axis][shape.out[axis]] = size
    return replace(shape, image=image, out=out)


def _seen(size: int, smaller: dict[int, int], pooling: tuple[int, ...]) -> int:
    """What became of a size; one that was never seen is a pooling of another."""
    if size == 1:
        return 1  # global pooling gives one position of any number
    if size not in smaller:
        stride, offset = pooling or (1, 0)
        before = [known for known in smaller if (known + offset) // stride == size]
        if before:
            smaller[size] = max((smaller[before[-1]] + offset) // stride, 1)
        else:
            known = next(reversed(smaller))
            smaller[size] = max(round(size * smaller[known] / known), 1)
    return smaller[size]


def _out(shape: LayerShape, axis: int, image: int) -> int:
    """Output positions along an axis for an image of another size."""
    stride, full, out = shape.stride[axis], shape.image[axis], shape.out[axis]
    if shape.transposed:
        return out + (image - full) * stride
    reach = shape.dilation[axis] * (shape.kernel[axis] - 1) + 1
    least = max((out - 1) * stride + reach - full, 0)
    padding = least + least % 2 if stride > 1 else (out - 1) + reach - full  # both sides are padded alike
    return (image + padding - reach) // stride + 1
