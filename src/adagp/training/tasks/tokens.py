"""The loss of every sequence of tokens."""

from torch import Tensor
from torch.nn import functional

from adagp.data.vocabulary import PAD


def token_losses(logits: Tensor, wanted: Tensor, samples: int, label_smoothing: float) -> Tensor:
    """Mean cross-entropy per sample, (samples,), from logits (samples x tokens, vocabulary); padding does not count."""
    losses = functional.cross_entropy(
        logits, wanted, ignore_index=PAD, reduction="none", label_smoothing=label_smoothing
    ).view(samples, -1)
    return losses.sum(1) / (wanted != PAD).view(samples, -1).sum(1).clamp(min=1)
