import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp import coarse, data
from adagp.data.vocabulary import PAD


@given(length=st.integers(2, 60), context=st.integers(1, 12), batch_size=st.integers(1, 5), epoch=st.integers(0, 3))
def test_every_token_but_the_first_is_predicted_once(length: int, context: int, batch_size: int, epoch: int) -> None:
    tokens = list(range(3, 3 + length))
    test = torch.cat(list(data.TokenBatches(tokens, context, batch_size, seed=1, train=False).epoch(epoch)))
    wanted = test[:, 1:].flatten()
    assert wanted[wanted != PAD].tolist() == tokens[1:]
    whole = (length - 1) // context
    if whole == 0:
        with pytest.raises(ValueError, match=f"{length} do not fill a sequence of {context + 1}"):
            data.TokenBatches(tokens, context, batch_size, seed=1, train=True)
        return
    batches = data.TokenBatches(tokens, context, batch_size, seed=1, train=True)
    train = torch.cat(list(batches.epoch(epoch)))
    assert len(train) == batches.examples_per_epoch == min(whole, len(batches) * batch_size)
    assert (train[:, 1:] == train[:, :-1] + 1).all()  # neighbours in the text
    starts = train[:, 0].tolist()
    assert len(set(starts)) == len(starts)
    assert all((start - 3) % context == 0 for start in starts)


def test_batches_are_shuffled_each_epoch_and_resume() -> None:
    batches = data.TokenBatches(list(range(3, 200)), 4, 8, seed=0, train=True)
    first, second = list(batches.epoch(0)), list(batches.epoch(1))
    assert not torch.equal(first[0], second[0])
    resumed = list(batches.epoch(1, start=4))
    assert len(resumed) == len(second) - 4
    assert all(torch.equal(one, two) for one, two in zip(second[4:], resumed, strict=True))
    (limited,) = data.TokenBatches(list(range(3, 200)), 4, 8, seed=0, train=True, limit=8).epoch(0)
    assert sorted(limited[:, 0].tolist()) == list(range(3, 35, 4))


@given(
    context=st.integers(1, 12),
    scales=st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=4, max_size=4),
    start=st.integers(0, 4),
)
def test_a_coarse_batch_is_the_first_tokens_of_the_full_one(context: int, scales: list[float], start: int) -> None:
    batches = data.TokenBatches(list(range(3, 4 + 8 * context)), context, 2, seed=0, train=True)
    found, full = list(batches.epoch(0, start, scales.__getitem__)), list(batches.epoch(0, start))
    assert len(found) == 4 - start
    for short, whole, scale in zip(found, full, scales[start:], strict=True):
        assert torch.equal(short[:, :-1], coarse.tokens(whole[:, :-1], scale))
        assert torch.equal(short[:, 1:], coarse.tokens(whole[:, 1:], scale))


def test_impossible_arguments_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="context: must be at least 1, got 0"):
        data.TokenBatches([3, 4], 0, 1, seed=0, train=True)
    with pytest.raises(ValueError, match="tokens: 1 do not fill a sequence of 2"):
        data.TokenBatches([3], 5, 1, seed=0, train=False)
    for part in ("train", "test"):
        with pytest.raises(ValueError, match=f"mine: the split {part} has no text"):
            data.Text("mine", **{"train": "a", "val": "", "test": "b"} | {part: " \n"})
