"""Data sets of images with boxes around objects, and batches of them at one size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from adagp import coarse
from adagp.data.decoding import WORKERS, Decoded, decode_batches
from adagp.data.order import EpochBatches, ScaleOf, generator


@dataclass(frozen=True)
class BoxedImage:
    """An image file and its objects.

    Attributes:
        path: the file.
        boxes: (M, 4) float32, x1 y1 x2 y2 in pixels from the image's upper left corner; x2 and y2 are edges.
        labels: (M,) int64, indices into the data set's `classes`.
        difficult: (M,) bool, objects that the evaluation of Pascal VOC does not count.
    """

    path: Path
    boxes: Tensor
    labels: Tensor
    difficult: Tensor


@dataclass(frozen=True)
class Detection:
    """Images with boxes, in a training and a test split.

    Raises:
        ValueError: if a split has no images.
    """

    name: str
    classes: tuple[str, ...]
    train: tuple[BoxedImage, ...]
    test: tuple[BoxedImage, ...]

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            if not getattr(self, part):
                raise ValueError(f"{self.name}: the split {part} has no images; add some")


@dataclass(frozen=True)
class DetectionBatch:
    """A batch of square images, and all their boxes in one list.

    Attributes:
        images: (N, 3, size, size) float32 in 0..1; the size of a coarse batch is smaller.
        boxes: (M, 4) float32, x1 y1 x2 y2 in pixels of the square.
        labels: (M,) int64.
        difficult: (M,) bool.
        owners: (M,) int64, the index of the image that each box is in.
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor
    difficult: Tensor
    owners: Tensor

    def to(self, device: torch.device) -> "DetectionBatch":
        """The same batch on another device."""
        return DetectionBatch(*(getattr(self, part.name).to(device) for part in fields(self)))


def flip_boxes(boxes: Tensor, size: int) -> Tensor:
    """Mirror boxes of a square, (M, 4), left to right."""
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([size - x2, y1, size - x1, y2], dim=1)


class DetectionBatches(EpochBatches[DetectionBatch]):
    """Batches of images letterboxed to squares, with their boxes; training mirrors images at random.

    Order and mirroring are a pure function of seed, epoch and batch, whatever the number of workers. See
    `EpochBatches` for the order.

    Args:
        images: files and boxes.
        batch_size: images per batch.
        size: width and height of the squares.
        seed: determines order and mirroring, together with epoch and batch.
        train: shuffle, mirror and drop a last batch that is not full.
        limit: use the first `limit` images only; None for all.
        workers: threads that decode.
        multiple: coarse batches have sizes that are multiples of this, the total stride of the network.

    Raises:
        ValueError: for an impossible argument; the message names it.
    """

    def __init__(
        self,
        images: Sequence[BoxedImage],
        batch_size: int,
        *,
        size: int,
        seed: int,
        train: bool,
        limit: int | None = None,
        workers: int = WORKERS,
        multiple: int = 1,
    ) -> None:
        super().__init__(batch_size, limit, seed=seed, train=train)
        if size < 1:
            raise ValueError(f"size: must be at least 1 pixel, got {size}")
        if workers < 1:
            raise ValueError(f"workers: must be at least 1, got {workers}")
        if multiple < 1:
            raise ValueError(f"multiple: must be at least 1 pixel, got {multiple}")
        self._images = tuple(images[:limit])
        self._count = len(self._images)
        if not self._images:
            raise ValueError("images: the list is empty")
        self._size = size
        self._workers = workers
        self._multiple = multiple

    def _iterate(self, epoch: int, start: int, scale_of: ScaleOf) -> Iterator[DetectionBatch]:
        chosen = [
            [self._images[index] for index in batch.tolist()]
            for batch in self._order(epoch).split(self._batch_size)[start : len(self)]
        ]
        files = ([image.path for image in images] for images in chosen)
        sizes = (coarse.size(self._size, scale_of(batch), self._multiple) for batch in range(start, len(self)))
        decoded = decode_batches(files, sizes, "letterbox", self._workers)
        for batch, (images, squares) in enumerate(zip(chosen, decoded, strict=True), start):
            draws = torch.rand(len(images), generator=generator(self._seed, epoch, batch))
            yield _batch(images, squares, (draws < (0.5 if self._train else 0.0)).tolist())


def _batch(images: list[BoxedImage], squares: list[Decoded], mirrored: list[bool]) -> DetectionBatch:
    pixels = torch.stack(
        [square.pixels.flip(1) if mirror else square.pixels for square, mirror in zip(squares, mirrored, strict=True)]
    )
    boxes = [square.placement.to_square(image.boxes) for image, square in zip(images, squares, strict=True)]
    return DetectionBatch(
        images=pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255),
        boxes=torch.cat(
            [flip_boxes(own, pixels.shape[2]) if mirror else own for own, mirror in zip(boxes, mirrored, strict=True)]
        ),
        labels=torch.cat([image.labels for image in images]),
        difficult=torch.cat([image.difficult for image in images]),
        owners=torch.repeat_interleave(torch.tensor([len(image.labels) for image in images])),
    )
