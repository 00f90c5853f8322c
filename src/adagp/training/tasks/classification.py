"""Image classification, judged by top-1 accuracy."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from adagp import models
from adagp.data import Batches, DataSet
from adagp.models.inception_v3 import WithAuxiliary, classification_loss
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe
from adagp.training.tasks.images import ImageTask
from adagp.training.tasks.task import Evaluation, Metric, check_batch_size

_EVALUATION_BATCH = 256
_EVALUATION_PIXELS = _EVALUATION_BATCH * 64**2  # larger images get smaller batches, to bound the memory

Batch = tuple[Tensor, Tensor]


class Classification(ImageTask):
    """Cross-entropy in training; top-1 accuracy in evaluation."""

    metrics: tuple[Metric, ...] = (Metric("accuracy", "accuracy", is_share=True),)

    def __init__(self, recipe: Recipe, dataset: DataSet) -> None:
        """Resize the images to the recipe's size.

        Raises:
            RecipeError: When the data does not fill a batch or cannot have that size.
        """
        check_batch_size(recipe, len(dataset.train), self.items, dataset.name)
        try:
            self._dataset = dataset = dataset.resized(_image_size(recipe, dataset))
        except ValueError as error:
            raise RecipeError(f"image_size = {recipe.image_size} cannot be used: {error}") from error
        train = Batches(
            dataset.train,
            recipe.batch_size,
            seed=recipe.seed,
            train=True,
            mean=dataset.mean,
            std=dataset.std,
            augment=dataset.augment if recipe.augment else None,
            limit=recipe.train_limit,
        )
        test = Batches(
            dataset.test,
            max(1, min(_EVALUATION_BATCH, _EVALUATION_PIXELS // dataset.size**2)),
            seed=recipe.seed,
            train=False,
            mean=dataset.mean,
            std=dataset.std,
            limit=recipe.test_limit,
        )
        super().__init__(recipe, train, test)

    def build_model(self) -> nn.Module:
        """The network for the data's classes and channels."""
        model = models.build(
            self._recipe.model,
            self._recipe.network_form,
            num_classes=self._dataset.num_classes,
            in_channels=self._dataset.channels,
            **self._recipe.sizes,
        )
        return self._in_layout(model)

    @property
    def train_items(self) -> int:
        """Training images."""
        return self._train.count

    def members(self, epoch: int, index: int) -> Tensor:
        """Indices of the images in a batch."""
        return self._train.members(epoch, index)

    def take(self, batch: Batch, places: Tensor) -> Batch:
        """Some images with their labels."""
        return batch[0][places], batch[1][places]

    def sample_losses(self, model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
        """Cross-entropy of every image; auxiliary heads do not count."""
        output, labels = model(self._move(batch[0], device)), batch[1].to(device)
        logits = output[0] if isinstance(output, WithAuxiliary) else output
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=self._recipe.label_smoothing)

    def share(self, batch: Batch, rank: int, count: int) -> Batch:
        """Every `count`-th image."""
        return batch[0][rank::count], batch[1][rank::count]

    def _example(self) -> Tensor:
        return torch.zeros(1, self._dataset.channels, self._dataset.size, self._dataset.size)

    def loss(self, model: nn.Module, batch: Batch, device: torch.device, scale: float = 1.0) -> Tensor:
        """Cross-entropy, plus that of an auxiliary head if the network has one."""
        images, labels = self._move(batch[0], device, scale), batch[1].to(device)
        return classification_loss(model(images), labels, label_smoothing=self._recipe.label_smoothing)

    def target(self, batch: Batch, device: torch.device) -> Tensor:
        """The labels."""
        return batch[1].to(device)

    def head_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(output, target, label_smoothing=self._recipe.label_smoothing)

    def evaluate(self, model: nn.Module, device: torch.device, *, last: bool) -> Evaluation:
        """Mean cross-entropy and top-1 accuracy."""
        loss = 0.0
        right = seen = 0
        for batch in self._test.epoch(0):
            images, labels = self._move(batch[0], device), batch[1].to(device)
            scores = model(images)
            loss += float(functional.cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
        return Evaluation(loss / seen, {"accuracy": right / seen})


def _image_size(recipe: Recipe, dataset: DataSet) -> int:
    """The recipe's size; else that of images in memory, or for files the size that the network is made for."""
    if recipe.image_size is not None:
        return recipe.image_size
    return dataset.size if isinstance(dataset.train.images, Tensor) else recipe.network_pixels
