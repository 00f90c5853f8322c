"""The form of a data set of images with boxes around objects, and batches of them brought to one size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from adagp.data.decoding import WORKERS, Decoded, decode_batches
from adagp.data.order import (
    batches_per_epoch,
    check_batch_size,
    check_limit,
    check_position,
    generator,
    order_of_epoch,
)


@dataclass(frozen=True)
class BoxedImage:
    """An image file and its objects.

    Attributes:
        path: the file.
        boxes: (M, 4) float32, x1 y1 x2 y2 in pixels from the image's upper left corner; x2 and y2 are edges.
        labels: (M,) int64, places in the data set's `classes`.
        difficult: (M,) bool: objects that the evaluation of Pascal VOC does not count.
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
                raise ValueError(f"{self.name}: the split {part} has no images; give it some")


@dataclass(frozen=True)
class DetectionBatch:
    """A batch of square images, and all their boxes in one list.

    Attributes:
        images: (N, 3, size, size) float32 in 0..1.
        boxes: (M, 4) float32, x1 y1 x2 y2 in pixels of the square.
        labels: (M,) int64.
        difficult: (M,) bool.
        owners: (M,) int64: the image, 0..N-1, that each box is in.
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
    """Boxes of a square, (M, 4), after it was mirrored left to right."""
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([size - x2, y1, size - x1, y2], dim=1)


class DetectionBatches:
    """Batches of a split: each image letterboxed to a square, its boxes moved along, mirrored at random in training.

    Order and mirroring are a pure function of seed, epoch and batch, as in `Batches`, whatever the number of workers.

    Args:
        images: files and boxes.
        batch_size: images per batch.
        size: width and height of the squares.
        seed: decides order and mirroring, together with epoch and batch.
        train: shuffle, mirror and drop the rest, or not.
        limit: use the first `limit` images only; None for all.
        workers: threads that decode.

    Raises:
        ValueError: naming the argument that cannot be used.
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
    ) -> None:
        check_batch_size(batch_size)
        check_limit(limit, "images")
        if size < 1:
            raise ValueError(f"size: must be at least 1 pixel, got {size}")
        if workers < 1:
            raise ValueError(f"workers: must be at least 1, got {workers}")
        self._images = tuple(images[:limit])
        if not self._images:
            raise ValueError("images: there are none")
        self._batch_size = batch_size
        self._size = size
        self._seed = seed
        self._train = train
        self._workers = workers

    def __len__(self) -> int:
        """Batches per epoch."""
        return batches_per_epoch(len(self._images), self._batch_size, train=self._train)

    @property
    def images_per_epoch(self) -> int:
        """Images an epoch goes through; fewer than there are where the last batch is left out."""
        return min(len(self) * self._batch_size, len(self._images))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[DetectionBatch]:
        """Iterate over the batches of an epoch from batch `start` on, the same as those of the whole epoch.

        Raises:
            ValueError: if `epoch` is negative or `start` is not in 0..len.
        """
        check_position(epoch, start, len(self))
        return self._iterate(epoch, start)

    def _iterate(self, epoch: int, start: int) -> Iterator[DetectionBatch]:
        order = order_of_epoch(len(self._images), self._seed, epoch, train=self._train)
        chosen = [
            [self._images[index] for index in batch.tolist()]
            for batch in order.split(self._batch_size)[start : len(self)]
        ]
        files = ([image.path for image in images] for images in chosen)
        decoded = decode_batches(files, self._size, "letterbox", self._workers)
        for batch, (images, squares) in enumerate(zip(chosen, decoded, strict=True), start):
            draws = torch.rand(len(images), generator=generator(self._seed, epoch, batch))
            yield _batch(images, squares, (draws < (0.5 if self._train else 0.0)).tolist(), self._size)


def _batch(images: list[BoxedImage], squares: list[Decoded], mirrored: list[bool], size: int) -> DetectionBatch:
    pixels = torch.stack(
        [square.pixels.flip(1) if mirror else square.pixels for square, mirror in zip(squares, mirrored, strict=True)]
    )
    boxes = [square.placement.to_square(image.boxes) for image, square in zip(images, squares, strict=True)]
    return DetectionBatch(
        images=pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255),
        boxes=torch.cat(
            [flip_boxes(own, size) if mirror else own for own, mirror in zip(boxes, mirrored, strict=True)]
        ),
        labels=torch.cat([image.labels for image in images]),
        difficult=torch.cat([image.difficult for image in images]),
        owners=torch.repeat_interleave(torch.tensor([len(image.labels) for image in images])),
    )
