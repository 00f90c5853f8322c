"""How well a network predicts tokens, for every task that does."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from adagp.data.vocabulary import PAD


class TokenScores(NamedTuple):
    """Over all tokens that are not padding."""

    loss: float
    """Mean cross-entropy."""
    accuracy: float
    tokens: int


def token_scores(predictions: Iterable[tuple[Tensor, Tensor]]) -> TokenScores:
    """Judge pairs of logits `(tokens, vocabulary)` and true tokens `(tokens,)`."""
    total = 0.0
    right = tokens = 0
    for logits, wanted in predictions:
        total += float(functional.cross_entropy(logits, wanted, ignore_index=PAD, reduction="sum"))
        right += int(((logits.argmax(1) == wanted) & (wanted != PAD)).sum())
        tokens += int((wanted != PAD).sum())
    return TokenScores(total / tokens, right / tokens, tokens)
