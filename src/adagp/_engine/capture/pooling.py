"""From a layer's output or input to pooled features, in two steps.

Between two large layers every small operation is slow, because the processor's caches are full of the layers' data: a
view that takes 2 us elsewhere takes 20 to 50. So the forward hook does as little as possible. It sums some samples of
the tensor, in memory order, in two operations that are prepared beforehand. Everything else is done later, for several
layers at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from adagp.layers import Layer
from adagp.predictors import Pooling

View = Callable[[Layer, Tensor], Tensor]
"""How a tensor of a layer is seen as `(units, 1, height, width)`, averaged over the batch."""
_MANY_POSITIONS = 256
_MOST_LAYOUTS = 4096  # sentences come in many lengths


class StridedShape(NamedTuple):
    """A shape and its strides."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class BatchSum(NamedTuple):
    """The sum over some samples of a tensor, flat, in the order of its memory."""

    total: Tensor
    """May alias the tensor when only one sample is summed: consume it before the forward continues."""
    layout: "SumLayout"

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.total.nbytes

    @property
    def is_copy(self) -> bool:
        """Whether it is independent of the tensor's memory."""
        return self.layout.rows[0] != 1

    def mean(self) -> Tensor:
        """The mean over these samples, shaped and typed as the tensor of a batch of one."""
        samples = self.layout.rows[0]
        mean = self.total if samples == 1 else self.total / samples
        return mean.to(self.layout.dtype).as_strided(*self.layout.single)


@dataclass(frozen=True, eq=False)
class SumLayout:
    """How to sum the samples of a layer's tensors that have one shape, strides and type."""

    rows: tuple[int, int]
    """The number of samples summed, and the number of entries of each."""
    every: int
    """The step between summed samples, which are evenly spread over the batch."""
    steps: tuple[int, int] | None
    """Strides between samples and between entries; None where a sample is not one block of memory."""
    dtype: torch.dtype
    single: StridedShape
    """The tensor of a batch of one, in the order of the sum."""
    maps: StridedShape | None
    """The same reorganised to `(units, height, width)`; None where the layer kind does more than rearrange it."""
    view: View

    @staticmethod
    def of(layer: Layer, tensor: Tensor, most_samples: int | None = None, view: View = Layer.reorganise) -> "SumLayout":
        """The layout for tensors like this one: at most `most_samples` samples are summed; None sums all."""
        batched = layer.kind.has_batch(layer.module, tensor)
        count, *shape = tensor.shape if batched else (1, *tensor.shape)
        step, *strides = tensor.stride() if batched else (0, *tensor.stride())
        every = 1 if most_samples is None else max(1, -(-count // most_samples))
        # A compiler lays tensors out as it likes: there, only their shape can be relied on.
        eager = not torch.compiler.is_compiling()
        fills_block = eager and is_block(shape, strides)
        if not fills_block:
            strides = _in_order(shape)
        one = [1] if batched else []
        single = StridedShape((*one, *shape), (*one, *strides))
        return SumLayout(
            rows=(-(-count // every), prod(shape)),
            every=every,
            steps=(every * step, 1) if fills_block else None,
            dtype=tensor.dtype,
            single=single,
            maps=_maps(partial(view, layer), tensor, single) if eager else None,
            view=view,
        )

    def sum_samples(self, tensor: Tensor) -> BatchSum:
        """Sum the samples of one tensor, outside of autograd and in full precision."""
        if torch.is_grad_enabled():
            tensor = tensor.detach()
        if self.steps is not None:
            samples = tensor.as_strided(self.rows, self.steps)
        else:
            samples = tensor[:: self.every].reshape(self.rows)
        if self.rows[0] == 1:
            return BatchSum(samples[0].float().contiguous(), self)
        return BatchSum(samples.sum(0, dtype=torch.float32), self)


def stack_feature_maps(sums: Sequence[tuple[Layer, BatchSum]]) -> list[tuple[list[int], Tensor]]:
    """The batch means as stacks of maps `(sums, units, height, width)`: equal layouts together, with their indices."""
    alike: dict[object, list[int]] = {}
    for place, (_, batch_sum) in enumerate(sums):
        layout = batch_sum.layout
        alike.setdefault((layout.rows, layout.maps) if layout.maps else place, []).append(place)
    found = []
    for places in alike.values():
        layer, first = sums[places[0]]
        (samples, entries), maps = first.layout.rows, first.layout.maps
        if maps is None:
            found.append((places, first.layout.view(layer, first.mean()).transpose(0, 1).float()))
            continue
        totals = [sums[place][1].total for place in places]
        stacked = torch.stack(totals) if len(totals) > 1 else totals[0]
        means = stacked if samples == 1 else stacked / samples
        found.append((places, means.as_strided((len(places), *maps.shape), (entries, *maps.strides))))
    return found


class Pooler:
    """Pools the outputs of all layers, or their inputs, to features."""

    def __init__(self, pooling: Pooling, view: View) -> None:
        """`view` says which of the two it pools."""
        self._pooling, self._view = pooling, view
        self._layouts: dict[tuple[str, torch.Size, tuple[int, ...], torch.dtype], SumLayout] = {}

    def sum_samples(self, layer: Layer, tensor: Tensor) -> BatchSum:
        """Sum some samples of the tensor, or all. Called inside the forward hook, where every operation is slow."""
        if torch.compiler.is_compiling():
            return self._layout(layer, tensor).sum_samples(tensor)
        form = (layer.name, tensor.shape, tensor.stride(), tensor.dtype)
        layout = self._layouts.get(form)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[form] = self._layout(layer, tensor)
        return layout.sum_samples(tensor)

    def pool(self, sums: Sequence[tuple[Layer, BatchSum]]) -> list[Tensor]:
        """The features of each sum: `(units, grid x grid)`."""
        features: dict[int, Tensor] = {}
        for places, maps in stack_feature_maps(sums):
            pooled = nn.functional.adaptive_avg_pool2d(maps, self._pooling.grid).flatten(2)
            features |= zip(places, pooled, strict=True)
        return [features[place] for place in range(len(sums))]

    def _layout(self, layer: Layer, tensor: Tensor) -> SumLayout:
        return SumLayout.of(layer, tensor, self._most_samples(layer, tensor), self._view)

    def _most_samples(self, layer: Layer, tensor: Tensor) -> int | None:
        """Fewer of large maps, whose positions are averaged too: reading them is what a GP batch costs most."""
        samples = self._pooling.samples
        if samples is None or not tensor.numel():
            return samples
        units = layer.out if self._view is Layer.reorganise else len(self._view(layer, tensor.detach()[:1]))
        positions = tensor[0].numel() // units
        enough = samples * _MANY_POSITIONS // max(positions, 1)
        return max(1, samples // 4, min(samples, enough))


def _maps(view: Callable[[Tensor], Tensor], tensor: Tensor, single: StridedShape) -> StridedShape | None:
    """How a layer kind reorganises a batch of one, if that is a view of the same memory."""
    with torch.no_grad():
        probe = tensor.new_empty(prod(single.shape)).as_strided(*single)
        maps = view(probe)
    try:
        is_view = maps.untyped_storage().data_ptr() == probe.untyped_storage().data_ptr()
    except RuntimeError:  # inside a transformation of torch.func there is no memory to compare
        return None
    if not is_view or maps.storage_offset() or probe._version:
        return None
    (units, _, *places), (step, _, *steps) = maps.shape, maps.stride()
    return StridedShape((units, *places), (step, *steps))


def is_block(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether entries of this shape fill one block of memory, in any order."""
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
