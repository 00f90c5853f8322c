"""The order of examples and batches, as a pure function of a seed and a position."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

_Batch = TypeVar("_Batch")

ScaleOf = Callable[[int], float]
"""Gives the fraction of their full size that the images of a batch are to have, by the batch's index in its epoch."""


def full_size(batch: int) -> float:
    """Every batch at full size."""
    del batch
    return 1.0


def generator(*key: int) -> torch.Generator:
    """A generator seeded by a hash of the key, so that neighbouring keys give unrelated streams."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


class EpochBatches(ABC, Generic[_Batch]):
    """Batches of a split, epoch by epoch; a subclass sets `_count` and makes the batches.

    Training batches are shuffled each epoch. A last batch that is not full is dropped, unless it is the only one: its
    statistics and its step would weigh more per example. Test batches come in order, and all of them.
    """

    _count: int
    """Examples in the split."""

    def __init__(self, batch_size: int, limit: int | None, *, seed: int, train: bool) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: must be at least 1, got {batch_size}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit: must be at least 1, or None for all examples; got {limit}")
        self._batch_size = batch_size
        self._seed = seed
        self._train = train

    def __len__(self) -> int:
        """Batches per epoch."""
        full, rest = divmod(self._count, self._batch_size)
        return full if self._train and full else full + bool(rest)

    @property
    def count(self) -> int:
        """Examples in the split."""
        return self._count

    @property
    def examples_per_epoch(self) -> int:
        """Examples in the batches of one epoch; a dropped last batch does not count."""
        return min(len(self) * self._batch_size, self._count)

    def epoch(self, epoch: int, start: int = 0, scale_of: ScaleOf = full_size) -> Iterator[_Batch]:
        """Iterate over the batches of an epoch from batch `start` on.

        They are bit-identical to those of an iteration from the beginning. The batches before `start` cost nothing.

        Args:
            epoch: counted from 0.
            start: index of the first batch.
            scale_of: the fraction of their full size that the images or contexts of a batch are to have, by the
                batch's index; sentence pairs have no size. It is called once for each batch, in order, when its
                loading begins: for image files a few batches ahead.

        Raises:
            ValueError: if `epoch` is negative or `start` is not in 0..len.
        """
        if epoch < 0:
            raise ValueError(f"epoch: must not be negative, got {epoch}")
        if not 0 <= start <= len(self):
            raise ValueError(f"start: must be in 0..{len(self)} (the batches of an epoch), got {start}")
        return self._iterate(epoch, start, scale_of)

    def members(self, epoch: int, batch: int) -> Tensor:
        """Indices of the examples of a batch, in its order."""
        parts: tuple[Tensor, ...] = self._order(epoch).split(self._batch_size)
        return parts[batch]

    @abstractmethod
    def _iterate(self, epoch: int, start: int, scale_of: ScaleOf) -> Iterator[_Batch]:
        """Make the batches of an epoch from batch `start` on."""

    def _order(self, epoch: int) -> Tensor:
        """Indices of the examples in the order of that epoch."""
        if not self._train:
            return torch.arange(self._count)
        return torch.randperm(self._count, generator=generator(self._seed, epoch))


def interleaved_order(labels: Tensor) -> Tensor:
    """Indices that spread each class evenly from first to last and keep the order inside each class.

    Any prefix then has the classes in the proportions of the whole, so that one cut makes a stratified split and a
    limited run sees every class. The order needs no seed: the split is the same on every machine.
    """
    position = torch.empty(len(labels), dtype=torch.float64)
    for label in set(labels.tolist()):
        members = labels == label
        count = int(members.sum())
        position[members] = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    # Ties are broken by class, so that the result does not depend on the order of classes in the file.
    by_class = torch.argsort(labels, stable=True)
    return by_class[torch.argsort(position[by_class], stable=True)]
