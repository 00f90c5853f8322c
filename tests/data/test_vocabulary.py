import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adagp
from adagp import data
from adagp.data import vocabulary as module
from adagp.data.vocabulary import BEGIN, END, LARGEST, PAD, SMALLEST, SPECIAL, Vocabulary

TEXT = [
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "Two young, White males are outside near many bushes.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
]
LEARNT = Vocabulary.build(TEXT, SMALLEST + 60)


@settings(deadline=None, max_examples=100)
@given(text=st.text())
def test_every_text_comes_back_exactly(text: str) -> None:
    numbers = LEARNT.encode(text)
    assert LEARNT.decode(numbers) == text
    assert all(SPECIAL <= number < len(LEARNT) for number in numbers)
    assert LEARNT.encode(text) == numbers  # also out of what it remembers


@settings(deadline=None, max_examples=30)
@given(sentences=st.lists(st.text(alphabet="ab ä,"), max_size=12), size=st.integers(SMALLEST, SMALLEST + 12))
def test_learning_equals_counting_everything_anew_at_each_step(sentences: list[str], size: int) -> None:
    words = {word: [SPECIAL + byte for byte in word.encode()] for s in sentences for word in module._WORDS.findall(s)}
    times = Counter(word for s in sentences for word in module._WORDS.findall(s))
    merges: list[tuple[int, int]] = []
    while len(merges) < size - SMALLEST:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += times[word]
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pair for pair, count in pairs.items() if count == max(pairs.values()))
        number = SMALLEST + len(merges)
        merges.append(best)
        for pieces in words.values():
            place = 0
            while place < len(pieces) - 1:
                if (pieces[place], pieces[place + 1]) == best:
                    pieces[place : place + 2] = [number]
                place += 1
    assert Vocabulary.build(sentences, size).merges == tuple(merges)


def test_the_order_of_the_sentences_and_the_process_do_not_matter() -> None:
    shuffled = TEXT * 2
    random.Random(1).shuffle(shuffled)
    assert Vocabulary.build(shuffled, SMALLEST + 60) == Vocabulary.build(TEXT * 2, SMALLEST + 60)
    code = (
        "import json; from adagp.data.vocabulary import Vocabulary;"
        f"print(json.dumps(Vocabulary.build({TEXT!r}, {SMALLEST + 60}).merges))"
    )
    for seed in ("1", "2"):  # of Python's own hashes, which decide the order of its sets
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(adagp.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert [tuple(pair) for pair in json.loads(done.stdout)] == list(LEARNT.merges)


def test_frequent_words_become_one_piece_and_the_size_is_kept() -> None:
    learnt = Vocabulary.build(["the cat the cat the cat"] * 3, SMALLEST + 100)
    assert [learnt.decode([number]) for number in learnt.encode("the cat")] == ["the", " cat"]
    assert len(learnt) < SMALLEST + 100  # nothing is left that occurs twice
    assert len(Vocabulary.build(TEXT, SMALLEST + 5)) == SMALLEST + 5
    assert len(LEARNT.encode(TEXT[0])) < len(Vocabulary().encode(TEXT[0])) == len(TEXT[0].encode())


def test_nothing_to_learn_gives_the_bytes() -> None:
    assert Vocabulary.build([], 1000) == Vocabulary()
    assert len(Vocabulary()) == SMALLEST


def test_special_numbers_stand_for_nothing_and_end_ends() -> None:
    numbers = LEARNT.encode("a man")
    assert LEARNT.decode([BEGIN, *numbers, PAD, END, *numbers]) == "a man"
    assert not {PAD, BEGIN, END} & set(numbers)


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert Vocabulary().decode([SPECIAL + 0xC3, SPECIAL + ord("x")]) == "\ufffdx"


@pytest.mark.parametrize("number", [-1, len(LEARNT), 10**9])
def test_numbers_that_do_not_exist_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=rf"numbers: must be in 0\.\.{len(LEARNT) - 1}, got {number}"):
        LEARNT.decode([number])


@pytest.mark.parametrize("size", [0, SMALLEST - 1, LARGEST + 1])
def test_sizes_out_of_range_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="size: must be in"):
        Vocabulary.build(TEXT, size)


@pytest.mark.parametrize("merges", [[(SMALLEST, 5)], [(PAD, 5)], [(5, 6), (5, 6)], [(5, -1)]])
def test_pieces_that_cannot_be_are_refused(merges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="merges: token"):
        Vocabulary(merges)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    LEARNT.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded == LEARNT
    assert hash(loaded) == hash(LEARNT)
    assert [loaded.encode(text) for text in TEXT] == [LEARNT.encode(text) for text in TEXT]
    assert loaded != Vocabulary()
    assert loaded != "a vocabulary"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"format": "other", "merges": []}',
        b'{"format": "adagp-vocabulary-1"}',
        b'{"format": "adagp-vocabulary-1", "merges": [[5]]}',
        b'{"format": "adagp-vocabulary-1", "merges": [[5, "6"]]}',
        b'{"format": "adagp-vocabulary-1", "merges": [[5, 6.0]]}',
        b'{"format": "adagp-vocabulary-1", "merges": [[5, 100000]]}',
        b'{"format": "adagp-vocabulary-1", "merges": ' + b"[" * 100_000,
        b'{"format": "adagp-vocabulary-1", "merges": [[5, ' + b"9" * 5_000 + b"]]}",
        b'{"format": "adagp-vocabulary-1", "merges": 7}',
        b'{"format": 1e999, "merges": []}',
    ],
)
def test_files_that_hold_no_vocabulary_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_bytes(content)
    with pytest.raises(data.CorruptDataError, match=r"vocabulary\.json: is not a vocabulary"):
        Vocabulary.load(path)


def test_pieces_that_double_each_time_are_refused_at_once(tmp_path: Path) -> None:
    merges = [[SPECIAL, SPECIAL]] + [[SMALLEST + n, SMALLEST + n] for n in range(60)]  # 2 ** 61 bytes
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps({"format": "adagp-vocabulary-1", "merges": merges}))
    tracemalloc.start()
    try:
        with pytest.raises(data.CorruptDataError, match=r"vocabulary\.json: is not a vocabulary.*256 bytes.*build it"):
            Vocabulary.load(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_learning_makes_no_piece_that_cannot_be_loaded(tmp_path: Path) -> None:
    learnt = Vocabulary.build(["=" * 5000 + " man"] * 3, SMALLEST + 60)
    assert max(len(learnt.decode([number])) for number in range(SPECIAL, len(learnt))) == module.MAX_PIECE_BYTES
    assert learnt.decode(learnt.encode("=" * 999 + " man")) == "=" * 999 + " man"
    assert len(learnt.encode(" man")) == 1  # what comes after the long pieces is still learnt
    learnt.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == learnt


def test_files_too_large_for_a_vocabulary_and_pipes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    with path.open("wb") as file:
        file.truncate(module.MAX_FILE_BYTES + 1)
    with pytest.raises(data.CorruptDataError, match=r"vocabulary\.json: has more than .* bytes.*build it again"):
        Vocabulary.load(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(data.CorruptDataError, match="pipe: is not a regular file"):
        Vocabulary.load(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        Vocabulary.load(tmp_path / "absent")
