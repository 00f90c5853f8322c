"""Batches whose order and augmentation are a pure function of (seed, epoch, batch).

So a run that was interrupted goes on with exactly the batches it would have seen, without replaying those before and
without any state to save.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from adagp.data.images import ImageFiles
from adagp.data.order import (
    batches_per_epoch,
    check_batch_size,
    check_limit,
    check_position,
    generator,
    order_of_epoch,
)


class _Split(Protocol):
    @property
    def images(self) -> Tensor | ImageFiles: ...
    @property
    def labels(self) -> Tensor: ...


@dataclass(frozen=True)
class Augment:
    """Random shifts by up to `padding` pixels (a crop of the image padded with black), and mirror images if `flip`.

    Whole batches are augmented by one gather, since one image at a time would cost more than a small model's forward.
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
        # Channels move last for the gather, so that one index serves all of them, and back without a copy.
        return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Batches:
    """Normalised batches of a split, epoch by epoch.

    Training batches are shuffled anew each epoch and the last one is left out if it is not full (unless it is the only
    one): its statistics and its step would weigh more per image. Test batches come in order, and all of them.

    Args:
        split: the images and labels.
        batch_size: images per batch.
        seed: decides order and augmentation, together with epoch and batch.
        train: shuffle, augment and drop the rest, or not.
        mean: per channel, on the scale 0..1.
        std: per channel, on the scale 0..1.
        augment: applied to training batches; None for none.
        limit: use the first `limit` images only; None for all.

    Raises:
        ValueError: naming the argument that cannot be used.
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
        check_batch_size(batch_size)
        check_limit(limit, "images")
        if augment is not None and not train:
            raise ValueError("augment: test batches are never augmented; pass augment=None where train=False")
        images = split.images
        self._images = images[:limit] if isinstance(images, Tensor) else images.first(limit)
        self._labels = split.labels[:limit]
        if len(self._labels) == 0:
            raise ValueError("split: holds no images")
        channels = self._images.shape[1]
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ValueError(f"mean, std: need {channels} values each, std above 0; got {tuple(mean)} and {tuple(std)}")
        self._batch_size = batch_size
        self._seed = seed
        self._train = train
        self._augment = augment
        # (pixel / 255 - mean) / std as one multiplication and one addition.
        shape = (1, channels, 1, 1)
        deviation = torch.tensor(std, dtype=torch.float64).reshape(shape)
        centre = torch.tensor(mean, dtype=torch.float64).reshape(shape)
        self._scale = (1 / (255 * deviation)).to(self._images.device, torch.float32)
        self._shift = (-centre / deviation).to(self._images.device, torch.float32)

    def __len__(self) -> int:
        """Batches per epoch."""
        return batches_per_epoch(len(self._labels), self._batch_size, train=self._train)

    @property
    def images_per_epoch(self) -> int:
        """Images an epoch goes through; fewer than there are where the last batch is left out."""
        return min(len(self) * self._batch_size, len(self._labels))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of an epoch from batch `start` on: float32 images (N, C, H, W), int64 labels (N,).

        They are bit-identical to those of an iteration from the beginning, and the batches before cost nothing.

        Raises:
            ValueError: if `epoch` is negative or `start` is not in 0..len.
        """
        check_position(epoch, start, len(self))
        return self._iterate(epoch, start)

    def _iterate(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = order_of_epoch(len(self._labels), self._seed, epoch, train=self._train).to(self._images.device)
        chosen = order.split(self._batch_size)[start : len(self)]
        for batch, images in enumerate(_read(self._images, chosen), start):
            if self._augment is not None:
                images = self._augment(images, generator(self._seed, epoch, batch))
            pixels = images.to(torch.float32, memory_format=torch.contiguous_format)
            yield pixels.mul_(self._scale).add_(self._shift), self._labels[chosen[batch - start]]


def _read(images: Tensor | ImageFiles, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    return (images[chosen] for chosen in batches) if isinstance(images, Tensor) else images.read(batches)
