import math

import pytest
import torch
from torch import nn

from adagp import models
from adagp.models.transformer import PAD, Attention, DecoderLayer, EncoderLayer, Transformer, sinusoidal_positions

TINY = {"source_vocabulary": 11, "target_vocabulary": 13, "layers": 2, "width": 8, "heads": 2, "hidden": 12}


@pytest.fixture
def tiny() -> Transformer:
    torch.manual_seed(0)
    return Transformer(**TINY).eval()


def test_positions_are_the_papers() -> None:
    positions = sinusoidal_positions(7, 6)
    for place in range(7):
        for index in range(6):
            angle = place / 10000 ** ((index - index % 2) / 6)
            expected = math.cos(angle) if index % 2 else math.sin(angle)
            assert positions[place, index].item() == pytest.approx(expected, abs=1e-6)


def _copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.q, ours.k, ours.v)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([part.weight for part in parts]),
            "in_proj_bias": torch.cat([part.bias for part in parts]),
            "out_proj.weight": ours.o.weight,
            "out_proj.bias": ours.o.bias,
        }
    )


def _copy_rest(ours: EncoderLayer | DecoderLayer, theirs: nn.Module) -> None:
    theirs.linear1.load_state_dict(ours.feedforward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feedforward[3].state_dict())
    for name, norm in ours.named_children():
        if name.startswith("norm"):
            getattr(theirs, name).load_state_dict(norm.state_dict())


def test_encoder_layer_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours = EncoderLayer(8, 2, 12, dropout=0.1).eval()
    theirs = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True).eval()
    _copy_attention(ours.attention, theirs.self_attn)
    _copy_rest(ours, theirs)
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False, False, False, True, True]])
    expected = theirs(x, src_key_padding_mask=padding)
    got = ours(x, ~padding[:, None, None])
    torch.testing.assert_close(got[~padding], expected[~padding])


def test_decoder_layer_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours = DecoderLayer(8, 2, 12, dropout=0.1).eval()
    theirs = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.1, batch_first=True).eval()
    _copy_attention(ours.attention, theirs.self_attn)
    _copy_attention(ours.cross_attention, theirs.multihead_attn)
    _copy_rest(ours, theirs)
    x, memory = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=padding)
    torch.testing.assert_close(ours(x, ~future, memory, ~padding[:, None, None]), expected)


def test_a_word_does_not_see_the_future(tiny: Transformer) -> None:
    source, target = torch.randint(1, 11, (2, 5)), torch.randint(1, 13, (2, 6))
    changed = target.clone()
    changed[:, 4:] = changed[:, 4:] % 12 + 1
    before, after = tiny(source, target), tiny(source, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_padding_changes_nothing(tiny: Transformer) -> None:
    source, target = torch.randint(1, 11, (2, 5)), torch.randint(1, 13, (2, 6))
    padded = nn.functional.pad(source, (0, 3), value=PAD), nn.functional.pad(target, (0, 2), value=PAD)
    torch.testing.assert_close(tiny(*padded)[:, :6], tiny(source, target))


def test_padding_in_front_of_target_words_is_not_seen(tiny: Transformer) -> None:
    """The causal mask alone would let later words look at it."""
    source = torch.randint(1, 11, (1, 5))
    seen: list[torch.Tensor] = []
    tiny.decoder[0].attention.register_forward_hook(lambda module, inputs, output: seen.append(inputs[2]))
    tiny(source, torch.tensor([[1, PAD, 3]]))
    assert seen[0][0, 0].tolist() == [[True, False, False], [True, False, False], [True, False, True]]


def test_source_order_and_words_matter(tiny: Transformer) -> None:
    target = torch.tensor([[1, 2, 3]])
    logits = [tiny(torch.tensor([source]), target) for source in ([4, 5, 6], [6, 5, 4], [4, 5, 7])]
    assert not torch.allclose(logits[0], logits[1], atol=1e-4)
    assert not torch.allclose(logits[0], logits[2], atol=1e-4)


def test_decoding_word_by_word_is_the_forward(tiny: Transformer) -> None:
    source, target = torch.randint(1, 11, (2, 5)), torch.randint(1, 13, (2, 6))
    memory = tiny.encode(source)
    for length in (1, 6):
        torch.testing.assert_close(tiny.decode(target[:, :length], memory, source), tiny(source, target)[:, :length])


def test_size_and_untied_output() -> None:
    with torch.device("meta"):
        model = models.build("transformer")
    attention, feedforward, norm = 4 * (512 * 512 + 512), 2 * 512 * 512 + 2 * 512, 2 * 512
    encoder = 3 * (attention + feedforward + 2 * norm)
    decoder = 3 * (2 * attention + feedforward + 3 * norm)
    expected = 2 * 10_000 * 512 + encoder + decoder + 512 * 10_000 + 10_000
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert isinstance(model, Transformer)
    assert model.output.weight is not model.target.words.weight
    assert not any("positions" in name for name in model.state_dict())


def test_initial_words_have_unit_variance_and_padding_is_zero() -> None:
    torch.manual_seed(0)
    model = Transformer(source_vocabulary=500, target_vocabulary=13)
    words = model.source.words.weight * model.source.scale
    assert not words[PAD].any()
    assert words[1:].std().item() == pytest.approx(1, rel=0.02)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="heads: 3 does not divide the width 8"):
        Transformer(**{**TINY, "heads": 3})


def test_a_sentence_too_long_is_refused() -> None:
    model = Transformer(**TINY, longest=4)
    with pytest.raises(ValueError, match="tokens: a sentence of 5 is longer than longest=4"):
        model(torch.ones(1, 5, dtype=torch.long), torch.ones(1, 2, dtype=torch.long))


def test_learns_two_sentences_by_heart() -> None:
    torch.manual_seed(0)
    model = Transformer(source_vocabulary=12, target_vocabulary=12, width=32, hidden=32)
    source = torch.tensor([[3, 4, 5, 2, PAD], [6, 7, 8, 9, 2]])
    target = torch.tensor([[1, 5, 4, 3, 2], [1, 9, 8, 2, PAD]])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        logits = model(source, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    memory, words = model.eval().encode(source), target[:, :1]
    for _ in range(4):
        words = torch.cat((words, model.decode(words, memory, source)[:, -1:].argmax(-1)), 1)
    assert words[0].tolist() == [1, 5, 4, 3, 2]
    assert words[1, :4].tolist() == [1, 9, 8, 2]
