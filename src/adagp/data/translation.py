"""The form of a data set of sentence pairs, and batches of them padded to one length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adagp.data.order import (
    batches_per_epoch,
    check_batch_size,
    check_limit,
    check_position,
    generator,
    order_of_epoch,
)
from adagp.data.vocabulary import BEGIN, END, PAD, Vocabulary

Pair = tuple[str, str]
_POOL_BATCHES = 50  # sentences of like length are looked for among so many batches


@dataclass(frozen=True)
class Translation:
    """Sentences and their translations, as raw text.

    `source` and `target` are the languages' codes; each pair is a sentence and its translation.

    Raises:
        ValueError: if there is nothing to train on or to test on; a validation split may be empty.
    """

    name: str
    source: str
    target: str
    train: tuple[Pair, ...]
    val: tuple[Pair, ...]
    test: tuple[Pair, ...]

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            if not getattr(self, part):
                raise ValueError(f"{self.name}: the split {part} has no pairs; give it some")


class PairBatches:
    """Batches of sentence pairs as token numbers, (N, length) int64 for source and target, padded with `PAD`.

    A source ends with `END`; a target also begins with `BEGIN`. Training batches hold sentences of like length, because
    padding is computed for nothing: pairs are shuffled, sorted by length among fifty batches, and the batches shuffled.
    Order is a pure function of seed, epoch and batch, as in `Batches`. Test batches come in order, and all of them.

    Args:
        pairs: sentences and their translations.
        source: the vocabulary of the sentences.
        target: the vocabulary of the translations; may be the same.
        batch_size: pairs per batch.
        seed: decides the order, together with the epoch.
        train: shuffle and drop the rest, or not.
        max_tokens: training leaves out pairs with a longer side, BEGIN and END counted; testing never leaves any out.
        limit: use the first `limit` pairs only; None for all.

    Raises:
        ValueError: naming the argument that cannot be used.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        source: Vocabulary,
        target: Vocabulary,
        batch_size: int,
        *,
        seed: int,
        train: bool,
        max_tokens: int = 128,
        limit: int | None = None,
    ) -> None:
        check_batch_size(batch_size)
        check_limit(limit, "pairs")
        if max_tokens < 3:
            raise ValueError(f"max_tokens: must be at least 3 (BEGIN, a token, END), got {max_tokens}")
        encoded = [([*source.encode(one), END], [BEGIN, *target.encode(two), END]) for one, two in pairs[:limit]]
        kept = [pair for pair in encoded if not train or max(map(len, pair)) <= max_tokens]
        if not kept:
            raise ValueError(f"pairs: none of {len(encoded)} is left; give more pairs or raise max_tokens={max_tokens}")
        self.left_out = len(encoded) - len(kept)
        self._sources = [torch.tensor(one) for one, _ in kept]
        self._targets = [torch.tensor(two) for _, two in kept]
        self._lengths = torch.tensor([(len(one), len(two)) for one, two in kept])
        self._batch_size = batch_size
        self._seed = seed
        self._train = train

    def __len__(self) -> int:
        """Batches per epoch."""
        return batches_per_epoch(len(self._sources), self._batch_size, train=self._train)

    @property
    def pairs_per_epoch(self) -> int:
        """Pairs an epoch goes through; fewer than there are where the last batch is left out."""
        return min(len(self) * self._batch_size, len(self._sources))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of an epoch from batch `start` on, the same as those of the whole epoch.

        Raises:
            ValueError: if `epoch` is negative or `start` is not in 0..len.
        """
        check_position(epoch, start, len(self))
        return self._iterate(epoch, start)

    def _iterate(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in self._batches(epoch)[start:]:
            members = chosen.tolist()
            yield _padded([self._sources[i] for i in members]), _padded([self._targets[i] for i in members])

    def _batches(self, epoch: int) -> list[Tensor]:
        order = order_of_epoch(len(self._sources), self._seed, epoch, train=self._train)
        if not self._train:
            return list(order.split(self._batch_size))
        # Cut before sorting: the pairs of the batch that is left out are then random, not the longest.
        order = order[: self.pairs_per_epoch]
        batches = [
            batch
            for pool in order.split(_POOL_BATCHES * self._batch_size)
            for batch in pool[self._by_length(pool)].split(self._batch_size)
        ]
        shuffled = torch.randperm(len(batches), generator=generator(self._seed, epoch, 1))
        return [batches[index] for index in shuffled.tolist()]

    def _by_length(self, pool: Tensor) -> Tensor:
        """Sorting order of the pool: by source length, and by target length among equals."""
        lengths = self._lengths[pool]
        return torch.argsort(lengths[:, 0] * (int(lengths[:, 1].max()) + 1) + lengths[:, 1], stable=True)


def _padded(sentences: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)
