from pathlib import Path

import pytest

from adagp import data
from tests.data.making import write_files


def test_of_a_single_file_the_last_tenth_is_for_testing(tmp_path: Path) -> None:
    text = "".join(chr(0x61 + index % 26) for index in range(199)) + "é"
    path = tmp_path / "book.txt"
    path.write_bytes(text.encode())
    found = data.load_text("text-file", path)
    assert (found.name, found.val) == ("text-file", "")
    assert (len(found.train), len(found.test)) == (180, 20)
    assert found.train + found.test == text


def test_a_folder_has_its_own_splits(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.txt": b"one\r\n two", "test.txt": b"three"})
    assert data.load_text("text-file", tmp_path) == data.Text("text-file", "one\r\n two", "", "three")
    write_files(tmp_path, {"val.txt": b"four"})
    assert data.load_text("text-file", tmp_path).val == "four"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"book\.txt: has no text; give a file of plain text"),
        (b" \n\t ", r"book\.txt: has no text"),
        ("Männer".encode("latin-1"), r"book\.txt: is not UTF-8 \(byte 0xe4 at 1\)"),
        (b"a", r"book\.txt: is too short to be split .*split train has no text"),
    ],
)
def test_text_that_cannot_be_used_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(content)
    with pytest.raises(data.CorruptDataError, match=message):
        data.load_text("text-file", path)


def test_missing_text_states_the_layout(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.txt": b"one"})
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(
            data.MissingDataError, match=r"ROOT itself a text file, or ROOT/train.txt and ROOT/test.txt"
        ):
            data.load_text("text-file", root)
