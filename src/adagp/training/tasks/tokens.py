"""How well a network predicts tokens, for every task that does."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from adagp.data.vocabulary import PAD


def token_losses(logits: Tensor, wanted: Tensor, samples: int, label_smoothing: float) -> Tensor:
    """Mean cross-entropy per sample, (samples,), from logits (samples x tokens, vocabulary); padding does not count."""
    losses = functional.cross_entropy(
        logits, wanted, ignore_index=PAD, reduction="none", label_smoothing=label_smoothing
    ).view(samples, -1)
    return losses.sum(1) / (wanted != PAD).view(samples, -1).sum(1).clamp(min=1)


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
