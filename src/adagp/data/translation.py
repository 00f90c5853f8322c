"""Data sets of sentence pairs, and batches of them padded to one length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adagp.data.order import EpochBatches, ScaleOf, generator
from adagp.data.vocabulary import BEGIN, END, PAD, Vocabulary

Pair = tuple[str, str]
_POOL_BATCHES = 50  # pairs are sorted by length within pools of this many batches


@dataclass(frozen=True)
class Translation:
    """Sentences and their translations, as raw text.

    `source` and `target` are language codes. Each pair is a sentence and its translation.

    Raises:
        ValueError: if the training or the test split is empty; the validation split may be.
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
                raise ValueError(f"{self.name}: the split {part} has no pairs; add some")


class PairBatches(EpochBatches[tuple[Tensor, Tensor]]):
    """Batches of sentence pairs as tokens, (N, length) int64 for source and target, padded with `PAD`.

    A source ends with `END`; a target also begins with `BEGIN`. A training batch holds sentences of similar length,
    because padding is wasted work: pairs are shuffled, sorted by length within fifty batches, and the batches shuffled.
    See `EpochBatches` for the rest of the order.

    Args:
        pairs: sentences and their translations.
        source: the vocabulary of the sentences.
        target: the vocabulary of the translations; may be the same.
        batch_size: pairs per batch.
        seed: determines the order, together with the epoch.
        train: shuffle, and drop long pairs and a last batch that is not full.
        max_tokens: training drops pairs with a longer side, BEGIN and END included; testing keeps all pairs.
        limit: use the first `limit` pairs only; None for all.

    Raises:
        ValueError: for an impossible argument; the message names it.
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
        super().__init__(batch_size, limit, seed=seed, train=train)
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
        self._count = len(kept)

    def _iterate(self, epoch: int, start: int, scale_of: ScaleOf) -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in self._batches(epoch)[start:]:
            members = chosen.tolist()
            yield _padded([self._sources[i] for i in members]), _padded([self._targets[i] for i in members])

    def members(self, epoch: int, batch: int) -> Tensor:
        """Indices of the pairs of a batch, in its order."""
        return self._batches(epoch)[batch]

    def _batches(self, epoch: int) -> list[Tensor]:
        order = self._order(epoch)
        if not self._train:
            return list(order.split(self._batch_size))
        # Cut before sorting: then the dropped batch holds random pairs, not the longest.
        order = order[: self.examples_per_epoch]
        batches = [
            batch
            for pool in order.split(_POOL_BATCHES * self._batch_size)
            for batch in pool[self._by_length(pool)].split(self._batch_size)
        ]
        shuffled = torch.randperm(len(batches), generator=generator(self._seed, epoch, 1))
        return [batches[index] for index in shuffled.tolist()]

    def _by_length(self, pool: Tensor) -> Tensor:
        """Order of the pool by source length, then by target length."""
        lengths = self._lengths[pool]
        return torch.argsort(lengths[:, 0] * (int(lengths[:, 1].max()) + 1) + lengths[:, 1], stable=True)


def _padded(sentences: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)
