"""Smaller samples throughout, in training and in testing: what a user does who resizes the data set."""

import dataclasses

import torch
from torch import Tensor

from adagp import coarse, models
from adagp.data import AnyDataSet, DataSet, Split
from adagp.training.recipe import Recipe
from adagp.training.rivals.rival import Rival

_DETECTION_STRIDE = 32
_IMAGES_AT_ONCE = 5000


class SmallSize(Rival):
    """Trains and tests on images at the recipe's `scale`, or on contexts of that length."""

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with a smaller image or context where these are the recipe's to choose."""
        task = models.task(recipe.model)
        if task == "next-token":
            sizes = models.sizes(recipe.model, recipe.network_form) | recipe.sizes
            context = coarse.size(sizes["context"], recipe.scale)
            return recipe.replace(sizes={**recipe.sizes, "context": context})
        if task == "detection":
            pixels = recipe.image_size or recipe.network_pixels
            return recipe.replace(image_size=coarse.size(pixels, recipe.scale, _DETECTION_STRIDE))
        if recipe.image_size is not None:
            return recipe.replace(image_size=coarse.size(recipe.image_size, recipe.scale))
        return recipe

    def dataset(self, recipe: Recipe, dataset: AnyDataSet) -> AnyDataSet:
        """Images in memory, averaged to the smaller size once."""
        if not isinstance(dataset, DataSet) or not isinstance(dataset.train.images, Tensor):
            return dataset
        size = coarse.size(dataset.size, recipe.scale)
        augment = dataset.augment
        padding = None if augment is None else round(augment.padding * size / dataset.size)
        return dataclasses.replace(
            dataset,
            train=_averaged(dataset.train, recipe.scale),
            test=_averaged(dataset.test, recipe.scale),
            size=size,
            augment=None if augment is None or padding is None else dataclasses.replace(augment, padding=padding),
        )


def _averaged(split: Split, scale: float) -> Split:
    images = split.images
    if not isinstance(images, Tensor):
        return split
    parts = [coarse.images(part.float(), scale).round().to(torch.uint8) for part in images.split(_IMAGES_AT_ONCE)]
    return Split(torch.cat(parts), split.labels)
