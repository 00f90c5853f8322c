"""Images of one class each; judged by the share that is classified correctly."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp import models
from adagp.data import Batches, DataSet
from adagp.models.inception_v3 import classification_loss
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe
from adagp.training.tasks.limits import check_batch_size
from adagp.training.tasks.task import Evaluation, Metric

_EVALUATION_BATCH = 256
_EVALUATION_PIXELS = _EVALUATION_BATCH * 64**2  # larger images come in smaller batches, to bound the memory

Batch = tuple[Tensor, Tensor]


class Classification:
    """Cross-entropy in training; top-1 accuracy in evaluation."""

    metrics: tuple[Metric, ...] = (Metric("accuracy", "accuracy", is_share=True),)
    items = "images"

    def __init__(self, recipe: Recipe, dataset: DataSet) -> None:
        """Bring the images to the recipe's size.

        Raises:
            RecipeError: When the data does not fill a batch or cannot have that size.
        """
        check_batch_size(recipe, len(dataset.train), self.items, dataset.name)
        try:
            self._dataset = dataset = dataset.resized(_image_size(recipe, dataset))
        except ValueError as error:
            raise RecipeError(f"image_size = {recipe.image_size} cannot be had: {error}") from error
        self._recipe = recipe
        self._train = Batches(
            dataset.train,
            recipe.batch_size,
            seed=recipe.seed,
            train=True,
            mean=dataset.mean,
            std=dataset.std,
            augment=dataset.augment if recipe.augment else None,
            limit=recipe.train_limit,
        )
        self._test = Batches(
            dataset.test,
            max(1, min(_EVALUATION_BATCH, _EVALUATION_PIXELS // dataset.size**2)),
            seed=recipe.seed,
            train=False,
            mean=dataset.mean,
            std=dataset.std,
            limit=recipe.test_limit,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch."""
        return len(self._train)

    @property
    def test_items(self) -> int:
        """Test images."""
        return self._test.images_per_epoch

    def build_model(self) -> nn.Module:
        """The network for the data's classes and channels."""
        model = models.build(
            self._recipe.model,
            self._recipe.network_form,
            num_classes=self._dataset.num_classes,
            in_channels=self._dataset.channels,
            **self._recipe.sizes,
        )
        return model.to(memory_format=torch.channels_last) if self._recipe.channels_last else model  # type: ignore[call-overload]

    def epoch(self, epoch: int, start: int) -> Iterator[Batch]:
        """Images and labels."""
        return self._train.epoch(epoch, start)

    def share(self, batch: Batch, rank: int, count: int) -> Batch:
        """Every `count`-th image."""
        return batch[0][rank::count], batch[1][rank::count]

    def loss(self, model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
        """Cross-entropy, with that of an auxiliary head where the network has one."""
        images, labels = self._move(batch, device)
        return classification_loss(model(images), labels, label_smoothing=self._recipe.label_smoothing)

    def evaluate(self, model: nn.Module, device: torch.device, *, last: bool) -> Evaluation:
        """Mean cross-entropy and top-1 accuracy."""
        loss = 0.0
        right = seen = 0
        for batch in self._test.epoch(0):
            images, labels = self._move(batch, device)
            scores = model(images)
            loss += float(functional.cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
        return Evaluation(loss / seen, {"accuracy": right / seen})

    def keep(self, folder: Path) -> None:
        """The weights are all that is needed."""

    def _move(self, batch: Batch, device: torch.device) -> Batch:
        images, labels = batch[0].to(device), batch[1].to(device)
        if self._recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, labels


def _image_size(recipe: Recipe, dataset: DataSet) -> int:
    """The recipe's; else that of images in memory, while files are brought to what the network is made for."""
    if recipe.image_size is not None:
        return recipe.image_size
    return dataset.size if isinstance(dataset.train.images, Tensor) else recipe.network_pixels
