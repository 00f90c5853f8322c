"""Object detection, judged by mean average precision at IoU 0.5."""

from typing import Any

import torch
from torch import Tensor, nn

from adagp import models
from adagp.data import Detection, DetectionBatch, DetectionBatches
from adagp.extras import require
from adagp.models import yolo
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe
from adagp.training.tasks.images import ImageTask
from adagp.training.tasks.precision import ImageDetections, mean_average_precision
from adagp.training.tasks.task import Evaluation, Metric, check_batch_size

_STRIDE = 32
_EVALUATION_BATCH = 16


class ObjectDetection(ImageTask):
    """YOLO's loss in training; mAP at IoU 0.5 and class accuracy in evaluation.

    Objects that the data marks as difficult are neither trained nor counted. Class accuracy is the fraction of objects
    whose class is right in the prediction at their cell and anchor, whether or not it counts as a detection.
    """

    stride = _STRIDE
    metrics: tuple[Metric, ...] = (Metric("map50", "mAP@0.5", "% mAP@0.5"), Metric("class_accuracy", "class accuracy"))

    def __init__(self, recipe: Recipe, dataset: Detection) -> None:
        """Resize the images to the recipe's size.

        Raises:
            RecipeError: When the data does not fill a batch, or the size does not fit the network.
        """
        check_batch_size(recipe, len(dataset.train), self.items, dataset.name)
        self._size = recipe.image_size or recipe.network_pixels
        if self._size % _STRIDE:
            raise RecipeError(f"image_size = {self._size} is not a multiple of {_STRIDE}: {recipe.model} needs one")
        require("faster_coco_eval")  # for the score after the first epoch
        self._classes = len(dataset.classes)
        train = DetectionBatches(
            dataset.train,
            recipe.batch_size,
            size=self._size,
            seed=recipe.seed,
            train=True,
            limit=recipe.train_limit,
            multiple=_STRIDE,
        )
        test = DetectionBatches(
            dataset.test, _EVALUATION_BATCH, size=self._size, seed=recipe.seed, train=False, limit=recipe.test_limit
        )
        super().__init__(recipe, train, test)

    def build_model(self) -> nn.Module:
        """The network for the data's classes."""
        recipe = self._recipe
        model = models.build(recipe.model, recipe.network_form, num_classes=self._classes, **recipe.sizes)
        return self._in_layout(model)

    def share(self, batch: DetectionBatch, rank: int, count: int) -> DetectionBatch:
        """Every `count`-th image with its boxes."""
        own = batch.owners % count == rank
        boxes, labels, difficult = (part[own] for part in (batch.boxes, batch.labels, batch.difficult))
        return DetectionBatch(batch.images[rank::count], boxes, labels, difficult, batch.owners[own] // count)

    def _example(self) -> Tensor:
        return torch.zeros(1, 3, self._size, self._size)

    def loss(self, model: nn.Module, batch: DetectionBatch, device: torch.device, scale: float = 1.0) -> Tensor:
        """YOLO's loss of boxes, objectness and classes; its targets are fractions of the image at every scale."""
        return yolo.loss(model(self._move(batch.images, device, scale)), self._targets(batch, device))

    def evaluate(self, model: nn.Module, device: torch.device, *, last: bool) -> Evaluation:
        """Mean loss per image, mAP and class accuracy."""
        loss = 0.0
        right = objects = images = 0
        found: list[ImageDetections] = []
        for batch in self._test.epoch(0):
            outputs, targets = model(self._move(batch.images, device)), self._targets(batch, device)
            loss += float(yolo.loss(outputs, targets)) * len(batch.images)
            right += int((yolo.answers(outputs, targets)[:, 5:].argmax(1) == targets[:, 1]).sum())
            objects += len(targets)
            images += len(batch.images)
            found += self._found(batch, yolo.detect(outputs))
        return Evaluation(
            loss / images,
            {"map50": mean_average_precision(found), "class_accuracy": right / objects if objects else 0.0},
        )

    def _targets(self, batch: DetectionBatch, device: torch.device) -> Tensor:
        counted = ~batch.difficult
        height, width = batch.images.shape[2:]
        rows = yolo.targets(batch.owners[counted], batch.labels[counted], batch.boxes[counted], (height, width))
        return rows.to(device)

    def _found(self, batch: DetectionBatch, detections: list[yolo.Detections]) -> list[ImageDetections]:
        """Objects and detections of each image, in pixels of the resized image."""
        pairs = []
        for index, detected in enumerate(detections):
            own = batch.owners == index
            of_image: dict[str, Any] = {
                "boxes": batch.boxes[own],
                "labels": batch.labels[own],
                "difficult": batch.difficult[own],
                "detected_boxes": detected.boxes.cpu() * self._size,
                "detected_labels": detected.classes.cpu(),
                "scores": detected.scores.cpu(),
            }
            pairs.append(ImageDetections(**of_image))
        return pairs
