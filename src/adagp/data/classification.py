"""Data sets of images with one label each."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adagp.data.batches import Augment
from adagp.data.images import ImageFiles


@dataclass(frozen=True)
class Split:
    """Images as stored, (N, C, H, W) uint8, and labels, (N,) int64.

    Images in memory stay 8-bit, a quarter of the size of float32; `Batches` converts a batch in less than a
    millisecond. Images of a set that does not fit into memory stay in their files.

    Raises:
        ValueError: if the tensors do not have these shapes and types.
    """

    images: Tensor | ImageFiles
    labels: Tensor

    def __post_init__(self) -> None:
        images = self.images
        if isinstance(images, Tensor) and (images.dtype != torch.uint8 or images.ndim != 4):
            raise ValueError(f"images: need uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != images.shape[:1]:
            raise ValueError(
                f"labels: need int64 ({images.shape[0]},), got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)


def in_classes(labels: Tensor, classes: int) -> bool:
    """Whether there is at least one label, and all are in 0..`classes` - 1."""
    return len(labels) > 0 and bool((labels >= 0).all() and (labels < classes).all())


@dataclass(frozen=True)
class DataSet:
    """A training and a test split, and what a recipe needs to know about them.

    `mean` and `std` are per channel on the scale 0..1, measured over the training split. `augment` is what is usual for
    this data; None for no augmentation.

    Raises:
        ValueError: if a split has no images, or labels outside of 0..`num_classes` - 1. Either would fail later, far
            from its cause.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            if len(split) == 0:
                raise ValueError(f"{self.name}: the split {part} has no images; add some")
            if not in_classes(split.labels, self.num_classes):
                raise ValueError(
                    f"{self.name}: the split {part} has labels outside of 0..{self.num_classes - 1}; correct them or"
                    " num_classes"
                )

    def resized(self, size: int) -> "DataSet":
        """The same images at another size, because networks differ in their input size.

        Raises:
            ValueError: if the images are in memory: those keep their published size.
        """
        if size == self.size:
            return self
        train, test = self.train.images, self.test.images
        if isinstance(train, Tensor) or isinstance(test, Tensor):
            raise ValueError(
                f"size: the images of {self.name!r} are {self.size} pixels wide, as published; use size={self.size},"
                " or a data set of image files"
            )
        padding = 0 if self.augment is None else round(self.augment.padding * size / self.size)
        return replace(
            self,
            train=replace(self.train, images=train.resized(size)),
            test=replace(self.test, images=test.resized(size)),
            size=size,
            augment=None if self.augment is None else replace(self.augment, padding=padding),
        )
