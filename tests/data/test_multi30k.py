import gzip
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from adagp import data
from adagp.data import multi30k
from adagp.data.vocabulary import PAD, Vocabulary
from tests.data.making import write_archive, write_files

BYTES = Vocabulary()


STEMS = ("train", "val", "test_2016_flickr")


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


def test_the_captions_alone_need_no_german(tmp_path: Path) -> None:
    english = {name: text for name, text in TEXTS.items() if name.endswith(".en")}
    write_files(tmp_path / "multi30k", _plain(english))
    found = multi30k.load_captions(tmp_path, checksums=_sums(TEXTS))
    assert found == data.Text("multi30k-en", "A dog.\nTwo men\u2028 talk.\n\n", "Yes\n", "No\n")
    with pytest.raises(data.MissingDataError, match=r"ROOT/multi30k/train\.en\.gz;.*or the same without"):
        data.load_text("multi30k-en", tmp_path / "empty")


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
