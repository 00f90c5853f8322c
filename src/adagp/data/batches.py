"""Batches whose order and augmentation are a pure function of (seed, epoch, batch).

An interrupted run resumes with exactly the batches it would have seen. Nothing is replayed, and no state is saved.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from adagp.data.images import ImageFiles
from adagp.data.order import EpochBatches, generator


class _Split(Protocol):
    @property
    def images(self) -> Tensor | ImageFiles: ...
    @property
    def labels(self) -> Tensor: ...


@dataclass(frozen=True)
class Augment:
    """Random shifts by up to `padding` pixels (a crop of the image padded with black), and mirror images if `flip`.

    A whole batch is augmented by one gather: one image at a time would cost more than a small model's forward.
    """

    padding: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding: must not be negative, got {self.padding}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented copies of `images`, (N, C, H, W); each image is shifted and mirrored on its own."""
        count, _, height, width = images.shape
        down, right = torch.randint(0, 2 * self.padding + 1, (2, count, 1), generator=generator)
        mirrored = torch.rand(count, 1, generator=generator) < (0.5 if self.flip else 0.0)
        column = torch.arange(width)
        rows = (down + torch.arange(height)).to(images.device)
        columns = (right + torch.where(mirrored, column.flip(0), column)).to(images.device)
        padded = functional.pad(images, (self.padding,) * 4)
        image = torch.arange(count, device=images.device)[:, None, None]
        # Channels last during the gather, so that one index serves all of them; moving them back copies nothing.
        return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


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

    def _iterate(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._order(epoch).to(self._images.device)
        chosen = order.split(self._batch_size)[start : len(self)]
        for batch, images in enumerate(_read(self._images, chosen), start):
            if self._augment is not None:
                images = self._augment(images, generator(self._seed, epoch, batch))
            pixels = images.to(torch.float32, memory_format=torch.contiguous_format)
            yield pixels.mul_(self._scale).add_(self._shift), self._labels[chosen[batch - start]]


def _read(images: Tensor | ImageFiles, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    return (images[chosen] for chosen in batches) if isinstance(images, Tensor) else images.read(batches)
