import pytest
import torch
from torch import nn

from adagp import AdaGP, models, schedules
from adagp.models.gpt import GPT, Block

TINY = {"vocabulary": 13, "context": 7, "layers": 2, "width": 8, "heads": 2}


def test_a_block_is_torchs_pre_norm_encoder_layer_with_a_causal_mask() -> None:
    torch.manual_seed(0)
    ours = Block(8, 2, dropout=0.1).eval()
    theirs = nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    ).eval()
    parts = (ours.attention.q, ours.attention.k, ours.attention.v)
    theirs.self_attn.load_state_dict(
        {
            "in_proj_weight": torch.cat([part.weight for part in parts]),
            "in_proj_bias": torch.cat([part.bias for part in parts]),
            "out_proj.weight": ours.attention.o.weight,
            "out_proj.bias": ours.attention.o.bias,
        }
    )
    theirs.linear1.load_state_dict(ours.feedforward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feedforward[2].state_dict())
    theirs.norm1.load_state_dict(ours.norm1.state_dict())
    theirs.norm2.load_state_dict(ours.norm2.state_dict())
    x, past = torch.randn(3, 5, 8), torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(ours(x, past), theirs(x, src_mask=~past))


@pytest.mark.parametrize("form", models.forms("gpt"))
def test_a_token_sees_only_those_before_it(form: str) -> None:
    torch.manual_seed(0)
    model = models.build("gpt", form, **TINY).eval()
    tokens = torch.randint(3, 13, (2, 7))
    whole = model(tokens)
    assert whole.shape == (2, 7, 13)
    changed = tokens.clone()
    changed[:, 4:] = 3
    torch.testing.assert_close(model(changed)[:, :4], whole[:, :4])
    torch.testing.assert_close(model(tokens[:, :4]), whole[:, :4])  # a shorter context gives the same
    assert not torch.allclose(model(changed)[:, 4:], whole[:, 4:])


def test_a_tied_head_is_the_embedding() -> None:
    apart, tied = models.build("gpt", "untied", **TINY), models.build("gpt", "tied", **TINY)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (apart, tied)]
    assert sizes[0] - sizes[1] == 13 * 8
    assert tied.output.weight is tied.embedding.words.weight
    assert set(apart.state_dict()) == set(tied.state_dict())


def test_a_tied_head_trains_in_bp_and_gp_batches() -> None:
    """The engine supplies the one gradient of both, and says so."""
    torch.manual_seed(0)
    model = models.build("gpt", "tied", **TINY)
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.fixed(1, 1), predictor="paper")
    (row,) = (row for row in gp.coverage().rows if row.layer == "embedding.words")
    assert "weight tied to output.weight" in row.reason
    tokens = torch.randint(3, 13, (4, 8))
    for _ in range(4):
        gp.step(lambda: nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
    assert gp.counts()["predicted"] == gp.counts()["backprop"] > 0


def test_impossible_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="heads: 3 does not divide the width 8"):
        models.build("gpt", **TINY | {"heads": 3})
    with pytest.raises(ValueError, match="a sentence of 8 is longer than longest=7"):
        GPT(**TINY)(torch.ones(1, 8, dtype=torch.long))
