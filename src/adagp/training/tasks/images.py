"""What the tasks on images share: batches, the memory layout, and nothing to keep but the weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adagp.training.recipe import Recipe


class ImageBatches(Protocol):
    """The batches of a split: `adagp.data.Batches` or `DetectionBatches`."""

    @property
    def examples_per_epoch(self) -> int:
        """Images in an epoch."""

    def __len__(self) -> int:
        """Batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from batch `start` on."""


class ImageTask:
    """The part of a `Task` that does not depend on what is predicted."""

    items = "images"

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

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Images with their labels or boxes."""
        return self._train.epoch(epoch, start)

    def keep(self, folder: Path) -> None:
        """Nothing: the weights are all that a trained model needs."""

    def _in_layout(self, model: nn.Module) -> nn.Module:
        return model.to(memory_format=torch.channels_last) if self._recipe.channels_last else model  # type: ignore[call-overload]

    def _move(self, images: Tensor, device: torch.device) -> Tensor:
        images = images.to(device)
        return images.contiguous(memory_format=torch.channels_last) if self._recipe.channels_last else images
