"""What the tasks on images share: batches, the memory layout, and nothing to keep but the weights."""

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adagp import coarse
from adagp.data.order import ScaleOf, full_size
from adagp.training.recipe import Recipe


class ImageBatches(Protocol):
    """The batches of a split: `adagp.data.Batches` or `DetectionBatches`."""

    @property
    def examples_per_epoch(self) -> int:
        """Images in an epoch."""

    @property
    def count(self) -> int:
        """Images in the split."""

    def members(self, epoch: int, batch: int) -> Tensor:
        """Indices of the images of a batch."""

    def __len__(self) -> int:
        """Batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0, scale_of: ScaleOf = full_size) -> Iterator[Any]:
        """The batches of an epoch from batch `start` on, each at its scale."""


class ImageTask:
    """The part of a `Task` that does not depend on what is predicted."""

    items = "images"
    stride = 1
    """Sizes are multiples of this."""

    def __init__(self, recipe: Recipe, train: ImageBatches, test: ImageBatches) -> None:
        """`train` and `test` supply the batches of an epoch and of an evaluation."""
        self._recipe, self._train, self._test = recipe, train, test

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch."""
        return len(self._train)

    @property
    def test_items(self) -> int:
        """Test images."""
        return self._test.examples_per_epoch

    def epoch(self, epoch: int, start: int, scale_of: ScaleOf = full_size) -> Iterator[Any]:
        """Images with their labels or boxes."""
        return self._train.epoch(epoch, start, scale_of)

    def keep(self, folder: Path) -> None:
        """Nothing: the weights are all that a trained model needs."""

    def _in_layout(self, model: nn.Module) -> nn.Module:
        return model.to(memory_format=torch.channels_last) if self._recipe.channels_last else model  # type: ignore[call-overload]

    def check_scales(self, model: nn.Module, scales: Collection[float]) -> None:
        """Run the model at each size, without computing anything."""
        if any(scale < 1 for scale in scales):
            coarse.check(model, self._example(), scales, partial(coarse.images, multiple=self.stride))

    def _example(self) -> Tensor:
        """An image of the shape that the network gets."""
        raise NotImplementedError

    def _move(self, images: Tensor, device: torch.device, scale: float = 1.0) -> Tensor:
        images = images.to(device)
        if self._recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return coarse.images(images, scale, self.stride)
