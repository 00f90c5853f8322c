import pytest
import torch

from adagp.data.vocabulary import PAD
from adagp.training.tasks.tokens import token_scores


def test_padding_does_not_count_and_every_other_token_weighs_the_same() -> None:
    torch.manual_seed(0)
    logits, wanted = torch.randn(7, 5), torch.tensor([1, 2, PAD, 3, 4, PAD, 1])
    true = wanted != PAD
    chosen = logits.log_softmax(1)[true, wanted[true]]
    hits = (logits[true].argmax(1) == wanted[true]).float()
    for cut in (1, 3, 6):  # however the tokens are spread over batches
        scores = token_scores([(logits[:cut], wanted[:cut]), (logits[cut:], wanted[cut:])])
        assert scores == pytest.approx((-chosen.mean().item(), hits.mean().item(), 5), rel=1e-6)
