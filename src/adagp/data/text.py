"""Data sets of running text, and batches of it as token sequences of one length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from adagp import coarse
from adagp.data.order import EpochBatches, ScaleOf
from adagp.data.vocabulary import PAD


@dataclass(frozen=True)
class Text:
    """Running text in three splits; the validation split may be empty.

    Raises:
        ValueError: if the training or the test split has no text.
    """

    name: str
    train: str
    val: str
    test: str

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            if not getattr(self, part).strip():
                raise ValueError(f"{self.name}: the split {part} has no text; add some")


class TokenBatches(EpochBatches[Tensor]):
    """Batches of neighbouring tokens, (N, context + 1) int64: the context, and after each of its tokens the next.

    The text is cut into sequences that overlap by one token, so that every token but the first is predicted once.
    Training drops an incomplete last sequence; testing pads it with `PAD`. A coarse batch has the first tokens of each
    sequence. See `EpochBatches` for the order.

    Args:
        tokens: the text as tokens.
        context: tokens that the network sees at most.
        batch_size: sequences per batch.
        seed: determines the order, together with the epoch.
        train: shuffle, and drop a last batch that is not full.
        limit: use the first `limit` sequences only; None for all.

    Raises:
        ValueError: for an impossible argument; the message names it.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        context: int,
        batch_size: int,
        *,
        seed: int,
        train: bool,
        limit: int | None = None,
    ) -> None:
        super().__init__(batch_size, limit, seed=seed, train=train)
        if context < 1:
            raise ValueError(f"context: must be at least 1, got {context}")
        least = context + 1 if train else 2
        if len(tokens) < least:
            raise ValueError(f"tokens: {len(tokens)} do not fill a sequence of {least}; give more text")
        text = torch.tensor(tokens)
        if not train:
            text = functional.pad(text, (0, -(len(tokens) - 1) % context), value=PAD)
        self._sequences = text.unfold(0, context + 1, context)[:limit]
        self._count = len(self._sequences)

    def _iterate(self, epoch: int, start: int, scale_of: ScaleOf) -> Iterator[Tensor]:
        context = self._sequences.shape[1] - 1
        parts = self._order(epoch).split(self._batch_size)
        for batch in range(start, len(self)):
            yield self._sequences[parts[batch], : 1 + coarse.size(context, scale_of(batch))]
