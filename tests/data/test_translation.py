import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagp import data
from adagp.data.vocabulary import BEGIN, END, PAD, Vocabulary

BYTES = Vocabulary()


STEMS = ("train", "val", "test_2016_flickr")


def _pairs(count: int) -> list[tuple[str, str]]:
    """Pairs that can be told apart, of lengths without order."""
    return [(f"{n}" + "x" * (n * 7 % 23), f"{n}" + "y" * (n * 11 % 19)) for n in range(count)]


def _batches(pairs: list[tuple[str, str]], batch_size: int, **options: object) -> data.PairBatches:
    return data.PairBatches(pairs, BYTES, BYTES, batch_size, **({"seed": 1, "train": True} | options))  # type: ignore[arg-type]


def _texts(batches: data.PairBatches, epoch: int) -> list[tuple[str, str]]:
    return [
        (BYTES.decode(source.tolist()), BYTES.decode(target.tolist()))
        for sources, targets in batches.epoch(epoch)
        for source, target in zip(sources, targets, strict=True)
    ]


def _equal(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(p, q) and torch.equal(s, t) for (p, s), (q, t) in zip(a, b, strict=True)
    )


def test_sentences_begin_end_and_are_padded() -> None:
    ((source, target),) = _batches([("a", "bcd"), ("efg", "h")], 2, train=False).epoch(0)
    a, b, c, d, e, f, g, h = (number for number in BYTES.encode("abcdefgh"))
    assert source.tolist() == [[a, END, PAD, PAD], [e, f, g, END]]
    assert target.tolist() == [[BEGIN, b, c, d, END], [BEGIN, h, END, PAD, PAD]]
    assert source.dtype == target.dtype == torch.int64


def test_two_vocabularies_are_kept_apart() -> None:
    learnt = Vocabulary.build(["aaaa aaaa aaaa"], 300)
    ((source, target),) = data.PairBatches([("aaaa", "aaaa")], learnt, BYTES, 1, seed=0, train=False).epoch(0)
    assert source.tolist() == [[*learnt.encode("aaaa"), END]]
    assert target.tolist() == [[BEGIN, *BYTES.encode("aaaa"), END]]


def test_test_batches_come_in_order_and_training_batches_shuffled_without_repetition() -> None:
    pairs = _pairs(103)
    assert _texts(_batches(pairs, 10, train=False), 4) == pairs
    shuffled = _texts(_batches(pairs, 10), 0)
    assert len(shuffled) == len(set(shuffled)) == 100
    assert set(shuffled) < set(pairs)
    assert shuffled != pairs[:100]
    assert _batches(pairs, 10).examples_per_epoch == 100


def test_order_is_a_function_of_seed_and_epoch() -> None:
    batches = _batches(_pairs(100), 10)
    list(batches.epoch(5))  # what was iterated before must not matter
    assert _texts(batches, 2) == _texts(_batches(_pairs(100), 10), 2)
    assert _texts(batches, 2) != _texts(batches, 3)
    assert _texts(batches, 2) != _texts(_batches(_pairs(100), 10, seed=2), 2)


def test_batches_hold_sentences_of_like_length_and_are_not_sorted() -> None:
    pairs = _pairs(2000)
    batches = list(_batches(pairs, 20).epoch(0))
    padding = sum(int((tokens == PAD).sum()) for batch in batches for tokens in batch)
    in_order = _batches(pairs, 20, train=False).epoch(0)
    unsorted = sum(int((tokens == PAD).sum()) for batch in in_order for tokens in batch)
    assert padding < 0.6 * unsorted
    lengths = [source.shape[1] for source, _ in batches]
    assert lengths != sorted(lengths)
    left_out = set(pairs) - set(_texts(_batches(pairs[:1990], 20), 0)) - set(pairs[1990:])
    assert max(len(source) for source, _ in left_out) < 26  # a batch left out is random, not the longest


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    epoch=st.integers(0, 1000),
    seed=st.integers(0, 2**63 - 1),
    train=st.booleans(),
    fraction=st.floats(0, 1),
)
def test_start_resumes_bit_identically(
    count: int, batch_size: int, epoch: int, seed: int, train: bool, fraction: float
) -> None:
    whole = list(_batches(_pairs(count), batch_size, seed=seed, train=train).epoch(epoch))
    resumed = _batches(_pairs(count), batch_size, seed=seed, train=train)
    assert len(resumed) == len(whole)
    start = round(fraction * len(whole))
    assert _equal(list(resumed.epoch(epoch, start)), whole[start:])


def test_global_randomness_is_neither_used_nor_moved() -> None:
    state = torch.get_rng_state()
    list(_batches(_pairs(40), 10).epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_long_pairs_are_left_out_of_training_only() -> None:
    pairs = [("a", "b"), ("a" * 9, "b"), ("a", "b" * 9), ("a" * 8, "b" * 7)]
    batches = _batches(pairs, 2, max_tokens=9)
    assert batches.left_out == 2
    assert sorted(_texts(batches, 0)) == [pairs[0], pairs[3]]
    assert _texts(_batches(pairs, 2, max_tokens=9, train=False), 0) == pairs


def test_limit_takes_the_first_pairs() -> None:
    assert sorted(_texts(_batches(_pairs(100), 10, limit=30), 0)) == sorted(_pairs(30))


@pytest.mark.parametrize(
    ("options", "named"),
    [({"batch_size": 0}, "batch_size"), ({"limit": 0}, "limit"), ({"max_tokens": 2}, "max_tokens")],
)
def test_bad_arguments_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _batches(_pairs(10), **({"batch_size": 5} | options))  # type: ignore[arg-type]


def test_no_pairs_left_is_told() -> None:
    with pytest.raises(ValueError, match=r"pairs: none of 1 is left.*max_tokens=3"):
        _batches([("long", "long")], 1, max_tokens=3)
    for epoch, start, named in ((-1, 0, "epoch"), (0, 3, "start")):
        with pytest.raises(ValueError, match=named):
            _batches(_pairs(10), 5).epoch(epoch, start)


def test_empty_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="own: the split test has no pairs"):
        data.Translation("own", "en", "de", train=(("a", "b"),), val=(), test=())
