import gzip
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagp import data
from adagp.data import multi30k
from adagp.data.vocabulary import BEGIN, END, PAD, Vocabulary
from tests.data.making import write_archive, write_files

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


TEXTS = {
    "train.en": "A dog.\nTwo men\u2028 talk.\n\n",
    "train.de": "Ein Hund.\nZwei Männer reden.\nLeer.\n",
    "val.en": "Yes\n",
    "val.de": "Ja\n",
    "test_2016_flickr.en": "No",
    "test_2016_flickr.de": "Nein",
}


def _sums(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _plain(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}


@pytest.mark.parametrize("form", ["gz", "plain", "root", "tar.gz", "tar.xz"])
def test_multi30k_from_each_layout(tmp_path: Path, form: str) -> None:
    plain = _plain(TEXTS)
    if form == "gz":
        write_files(tmp_path / "multi30k", {f"{name}.gz": gzip.compress(text) for name, text in plain.items()})
    elif form.startswith("tar"):
        write_archive(tmp_path / f"multi30k.{form}", {f"multi30k/{name}": text for name, text in plain.items()})
    else:
        write_files(tmp_path / ("multi30k" if form == "plain" else ""), plain)
    found = multi30k.load_multi30k(tmp_path, checksums=_sums(TEXTS))
    assert found.train == (("A dog.", "Ein Hund."), ("Two men\u2028 talk.", "Zwei Männer reden."), ("", "Leer."))
    assert found.val == (("Yes", "Ja"),)
    assert found.test == (("No", "Nein"),)
    assert (found.name, found.source, found.target) == ("multi30k", "en", "de")


def test_a_text_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "multi30k", _plain(TEXTS))
    with pytest.raises(data.CorruptDataError, match=r"train\.en: its text has sha256 .*github\.com/multi30k"):
        data.load_translation("multi30k", tmp_path)


def test_lines_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    texts = TEXTS | {"val.de": "Ja\nNein\n"}
    write_files(tmp_path, _plain(texts))
    with pytest.raises(data.CorruptDataError, match=r"val\.en has 1 lines and val\.de 2"):
        multi30k.load_multi30k(tmp_path, checksums=_sums(texts))


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    write_files(tmp_path, _plain(TEXTS))
    (tmp_path / "val.de.gz").write_bytes(gzip.compress(b"Ja\n" * 100)[:-9])
    with pytest.raises(data.CorruptDataError, match=r"val\.de\.gz: cannot be read"):
        multi30k.load_multi30k(tmp_path, checksums=_sums(TEXTS))


@pytest.mark.parametrize("code", ["de", "en"])
def test_a_text_that_is_not_utf8_is_refused_by_name(tmp_path: Path, code: str) -> None:
    plain = _plain(TEXTS) | {f"val.{code}": "Männer\n".encode("latin-1")}
    write_files(tmp_path, plain)
    sums = {name: hashlib.sha256(text).hexdigest() for name, text in plain.items()}
    with pytest.raises(data.CorruptDataError, match=rf"val\.{code}: is not UTF-8 \(byte 0xe4 at 1\).*github"):
        multi30k.load_multi30k(tmp_path, checksums=sums)


@pytest.mark.parametrize("text", ["", "\n"])
def test_a_split_without_sentences_is_refused_by_name(tmp_path: Path, text: str) -> None:
    texts = TEXTS | {"val.en": text, "val.de": text}
    write_files(tmp_path, _plain(texts))
    with pytest.raises(data.CorruptDataError, match=r"val\.en: has no sentences.*github"):
        multi30k.load_multi30k(tmp_path, checksums=_sums(texts))


def test_a_text_larger_than_any_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, _plain(TEXTS))
    (tmp_path / "val.en.gz").write_bytes(gzip.compress(b"a\n" * 6_000_000, 1))
    with pytest.raises(data.CorruptDataError, match=r"val\.en\.gz: has more than 10,000,000 bytes.*github"):
        multi30k.load_multi30k(tmp_path, checksums=_sums(TEXTS))


def test_missing_multi30k_states_layout_and_source(tmp_path: Path) -> None:
    write_files(tmp_path / "multi30k", {"train.en": b"x", "train.de": b"x"})
    with pytest.raises(data.MissingDataError) as caught:
        data.load_translation("multi30k", tmp_path)
    for text in ("ROOT/multi30k/test_2016_flickr.en.gz", "val.de.gz", "ADAGP_DATA", "github.com/multi30k/dataset"):
        assert text in str(caught.value)


@pytest.mark.slow
def test_the_real_thing() -> None:
    if not os.environ.get("ADAGP_DATA"):
        pytest.skip("ADAGP_DATA names no folder")
    try:
        found = data.load_translation("multi30k")
    except data.MissingDataError:
        pytest.skip("ADAGP_DATA holds no Multi30k")
    assert [len(part) for part in (found.train, found.val, found.test)] == [29000, 1014, 1000]
    assert found.train[0][1] == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    learnt = Vocabulary.build((sentence for pair in found.train for sentence in pair), 6000)
    assert len(learnt) == 6000
    assert all(learnt.decode(learnt.encode(text)) == text for pair in found.test for text in pair)
    batches = data.PairBatches(found.train, learnt, learnt, 64, seed=0, train=True)
    assert batches.left_out == 0
    tokens = [tensor for batch in batches.epoch(0) for tensor in batch]
    assert sum(int((t == PAD).sum()) for t in tokens) < 0.2 * sum(t.numel() for t in tokens)
