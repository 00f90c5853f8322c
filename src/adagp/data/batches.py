"""Batches whose order and augmentation are a pure function of (seed, epoch, batch).

An interrupted run resumes with exactly the batches it would have seen. Nothing is replayed, and no state is saved.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from adagp import coarse
from adagp.data.images import ImageFiles
from adagp.data.order import EpochBatches, ScaleOf, generator


class _Split(Protocol):
    @property
    def images(self) -> Tensor | ImageFiles: ...
    @property
    def labels(self) -> Tensor: ...


@dataclass(frozen=True)
class Augment:
    """Random shifts by up to `padding` pixels (a crop of the image padded with black), and mirror images if `flip`.

    A whole batch is augmented at once: one image at a time would cost more than a small model's forward.
    """

    padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding: must not be negative, got {self.padding}")

    def __call__(self, images: Tensor, generator: torch.Generator, scale: float = 1.0) -> Tensor:
        """Return augmented copies of `images`, (N, C, H, W); each image is shifted and mirrored on its own.

        Images at a fraction `scale` of their full size are shifted by the nearest whole number of their pixels.
        """
        count, channels, height, width = images.shape
        shift = torch.randint(0, 2 * self.padding + 1, (2, count, 1, 1), generator=generator) - self.padding
        mirrored = torch.rand(count, 1, 1, generator=generator) < (0.5 if self.flip else 0.0)
        padding = math.floor(self.padding * scale + 0.5)
        down, right = (shift * scale + 0.5).floor().long() + padding
        padded = functional.pad(images, (padding,) * 4).contiguous()
        sides = torch.stack((padded, padded.flip(3))) if self.flip else padded
        # In a mirror image the crop is as far from the other edge.
        right = torch.where(mirrored, 2 * padding - right, right)
        plane = (mirrored * count + torch.arange(count)[:, None, None]) * channels + torch.arange(channels)[:, None]
        row = plane * padded.shape[2] + down + torch.arange(height)
        # A row of a crop lies in one piece, so that whole rows are copied.
        starts = (row * padded.shape[3] + right).flatten().to(images.device)
        return sides.flatten().unfold(0, width, 1).index_select(0, starts).view(count, channels, height, width)


class Batches(EpochBatches[tuple[Tensor, Tensor]]):
    """Normalised batches of a split: float32 images (N, C, H, W) and int64 labels (N,).

    See `EpochBatches` for their order.

    Args:
        split: the images and labels.
        batch_size: images per batch.
        seed: determines order and augmentation, together with epoch and batch.
        train: shuffle, augment and drop a last batch that is not full.
        mean: per channel, on the scale 0..1.
        std: per channel, on the scale 0..1.
        augment: applied to training batches; None for no augmentation.
        limit: use the first `limit` images only; None for all.

    Raises:
        ValueError: for an impossible argument; the message names it.
    """

    def __init__(
        self,
        split: _Split,
        batch_size: int,
        *,
        seed: int,
        train: bool,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augment | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(batch_size, limit, seed=seed, train=train)
        if augment is not None and not train:
            raise ValueError("augment: test batches are never augmented; pass augment=None with train=False")
        images = split.images
        self._images = images[:limit] if isinstance(images, Tensor) else images.first(limit)
        self._labels = split.labels[:limit]
        self._count = len(self._labels)
        if not self._count:
            raise ValueError("split: has no images")
        channels = self._images.shape[1]
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ValueError(f"mean, std: need {channels} values each, std above 0; got {tuple(mean)} and {tuple(std)}")
        self._augment = augment
        # (pixel / 255 - mean) / std as one multiplication and one addition.
        shape = (1, channels, 1, 1)
        deviation = torch.tensor(std, dtype=torch.float64).reshape(shape)
        centre = torch.tensor(mean, dtype=torch.float64).reshape(shape)
        self._scale = (1 / (255 * deviation)).to(self._images.device, torch.float32)
        self._shift = (-centre / deviation).to(self._images.device, torch.float32)

    def _iterate(self, epoch: int, start: int, scale_of: ScaleOf) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._order(epoch).to(self._images.device)
        chosen = order.split(self._batch_size)[start : len(self)]
        loaded = self._read(chosen, map(scale_of, range(start, len(self))))
        for batch, (images, scale) in enumerate(loaded, start):
            if self._augment is not None:
                of_full_size = images.shape[-1] / self._images.shape[-1]
                images = self._augment(images, generator(self._seed, epoch, batch), of_full_size)
            pixels = images.to(torch.float32, memory_format=torch.contiguous_format)
            # Averaging and normalising commute, and fewer pixels are quicker to normalise.
            pixels = coarse.images(pixels, scale)
            yield pixels.mul_(self._scale).add_(self._shift), self._labels[chosen[batch - start]]

    def _read(self, batches: Iterable[Tensor], scales: Iterable[float]) -> Iterator[tuple[Tensor, float]]:
        """The images of each batch, and the scale to which they are still to be averaged."""
        images = self._images
        if isinstance(images, Tensor):
            for chosen, scale in zip(batches, scales, strict=True):
                yield images.index_select(0, chosen), scale
        else:
            sizes = (coarse.size(images.size, scale) for scale in scales)
            for read in images.read(batches, sizes):
                yield read, 1.0
