"""A validation split: training items that are set aside to choose learning rates on."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adagp.data.classification import DataSet, Split
from adagp.data.order import generator
from adagp.data.registry import AnyDataSet
from adagp.data.text import Text
from adagp.data.translation import Translation


@dataclass(frozen=True)
class Validated:
    """One data set in two forms with the same training items.

    Attributes:
        choosing: Its test split is the validation split.
        judging: Its test split is the data set's own.
    """

    choosing: AnyDataSet
    judging: AnyDataSet


def validated(dataset: AnyDataSet, items: int) -> Validated:
    """Set `items` training items aside for validation.

    They are drawn at random, the same on every machine: a set may be sorted, or hold its classes in turn. Text and
    translations with a validation split of their own keep their training items.

    Raises:
        ValueError: When too few training items remain, or the data is for detection.
    """
    match dataset:
        case DataSet():
            return _validated_images(dataset, items)
        case Translation():
            if dataset.val:
                return Validated(replace(dataset, test=dataset.val[:items]), dataset)
            _require_rest(dataset.name, len(dataset.train), items)
            chosen = set(_drawn(len(dataset.train), items).tolist())
            rest = tuple(pair for place, pair in enumerate(dataset.train) if place not in chosen)
            judging = replace(dataset, train=rest)
            return Validated(replace(judging, test=tuple(dataset.train[place] for place in sorted(chosen))), judging)
        case Text():
            if not dataset.val.strip():
                raise ValueError(f"validation: '{dataset.name}' has no validation text; give it some")
            return Validated(replace(dataset, test=dataset.val), dataset)
        case _:
            raise ValueError(f"validation: '{dataset.name}' is for detection, which has no validation split here")


def _validated_images(dataset: DataSet, items: int) -> Validated:
    _require_rest(dataset.name, len(dataset.train), items)
    chosen = _drawn(len(dataset.train), items)
    others = torch.ones(len(dataset.train), dtype=torch.bool)
    others[chosen] = False
    judging = replace(dataset, train=_part(dataset.train, others.nonzero().flatten()))
    return Validated(replace(judging, test=_part(dataset.train, chosen)), judging)


def _part(split: Split, places: Tensor) -> Split:
    images = split.images
    if isinstance(images, Tensor):
        return Split(images[places], split.labels[places])
    return Split(replace(images, paths=tuple(images.paths[place] for place in places.tolist())), split.labels[places])


def _drawn(count: int, items: int) -> Tensor:
    """The places of `items` of `count` items, in order."""
    return torch.randperm(count, generator=generator(count, items))[:items].sort().values


def _require_rest(name: str, count: int, items: int) -> None:
    if not 0 < items < count:
        raise ValueError(f"validation: {items} of the {count} training items of '{name}' cannot be set aside")
