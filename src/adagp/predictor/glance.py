"""Glances: what a forward hook keeps of a layer's output until there is time to look at it.

Between two large layers everything small is slow, because the processor's caches are full of the layers' data: a view
that takes 2 us elsewhere takes 20 to 50. So a hook does next to nothing. It sums some samples of the output, in memory
order, in two operations settled before; the rest is done for several layers at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from adagp.layers import Layer


class Form(NamedTuple):
    """A shape, and how it lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Glance:
    """The sum over some samples of an output, flat, in the order of its memory."""

    total: Tensor
    """Of one sample, or of an output without a batch, it may be the output itself: see that at once."""
    reading: "Reading"

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self.total.nbytes

    @property
    def is_copy(self) -> bool:
        """Whether the output may change, or go, without changing this."""
        return self.reading.rows[0] != 1

    def mean(self) -> Tensor:
        """The mean over these samples, as the output of a batch of one and in its type."""
        samples = self.reading.rows[0]
        mean = self.total if samples == 1 else self.total / samples
        return mean.to(self.reading.dtype).as_strided(*self.reading.single)


@dataclass(frozen=True, eq=False)
class Reading:
    """How a layer's outputs of one form are read."""

    rows: tuple[int, int]
    """How many samples, and how many entries each has."""
    every: int
    """Samples are evenly spread: each is so many after the last."""
    steps: tuple[int, int] | None
    """How far apart samples, and a sample's entries, lie in memory; None where a sample is not one block of it."""
    dtype: torch.dtype
    single: Form
    """Of the output of a batch of one, in the order of the sum."""
    maps: Form | None
    """Of the same, reorganised to `(out, height, width)`; None where the layer kind does more than rearrange it."""

    @staticmethod
    def of(layer: Layer, output: Tensor, most_samples: int | None = None) -> "Reading":
        """Read at most so many samples of outputs like this one, or all of them."""
        batched = layer.kind.has_batch(layer.module, output)
        count, *shape = output.shape if batched else (1, *output.shape)
        step, *strides = output.stride() if batched else (0, *output.stride())
        every = 1 if most_samples is None else max(1, -(-count // most_samples))
        # A compiler lays tensors out as it likes: there, only their shape can be relied on.
        eager = not torch.compiler.is_compiling()
        is_block = eager and _is_block(shape, strides)
        if not is_block:
            strides = _in_order(shape)
        one = [1] if batched else []
        single = Form((*one, *shape), (*one, *strides))
        return Reading(
            rows=(-(-count // every), prod(shape)),
            every=every,
            steps=(every * step, 1) if is_block else None,
            dtype=output.dtype,
            single=single,
            maps=_maps(layer, output, single) if eager else None,
        )

    def glance(self, output: Tensor) -> Glance:
        """Read one output; autograd takes no part, and no product is made that autocast would shorten."""
        if torch.is_grad_enabled():
            output = output.detach()
        if self.steps is not None:
            samples = output.as_strided(self.rows, self.steps)
        else:
            samples = output[:: self.every].reshape(self.rows)
        if self.rows[0] == 1:
            return Glance(samples[0].float().contiguous(), self)
        return Glance(samples.sum(0, dtype=torch.float32), self)


def maps_of(glances: Sequence[tuple[Layer, Glance]]) -> list[tuple[list[int], Tensor]]:
    """The means of glances, reorganised to `(glances, out, height, width)`: those alike together, with their places."""
    alike: dict[object, list[int]] = {}
    for place, (_, glance) in enumerate(glances):
        reading = glance.reading
        alike.setdefault((reading.rows, reading.maps) if reading.maps else place, []).append(place)
    found = []
    for places in alike.values():
        layer, first = glances[places[0]]
        (samples, entries), maps = first.reading.rows, first.reading.maps
        if maps is None:
            found.append((places, layer.reorganise(first.mean()).transpose(0, 1).float()))
            continue
        totals = [glances[place][1].total for place in places]
        sums = torch.stack(totals) if len(totals) > 1 else totals[0][None]
        means = sums if samples == 1 else sums / samples
        found.append((places, means.as_strided((len(places), *maps.shape), (entries, *maps.strides))))
    return found


def _maps(layer: Layer, output: Tensor, single: Form) -> Form | None:
    """The form in which a layer kind reorganises a batch of one, if that is another view of the same memory."""
    with torch.no_grad():
        probe = output.new_empty(prod(single.shape)).as_strided(*single)
        maps = layer.reorganise(probe)
    try:
        is_view = maps.untyped_storage().data_ptr() == probe.untyped_storage().data_ptr()
    except RuntimeError:  # inside a transformation of torch.func there is no memory to compare
        return None
    if not is_view or maps.storage_offset() or probe._version:
        return None
    (out, _, *places), (step, _, *steps) = maps.shape, maps.stride()
    return Form((out, *places), (step, *steps))


def _is_block(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether entries of this shape fill one block of memory, in whatever order."""
    filled = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != filled:
            return False
        filled *= size
    return True


def _in_order(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor of this shape."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides[: len(shape)]
