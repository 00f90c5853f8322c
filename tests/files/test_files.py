"""Files written whole or not at all, and strict JSON."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import adagp
from adagp.files import write_atomically, write_bytes, write_json


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="no room"):
        write_atomically(path, _fail)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", lambda file: file.write(b"x"))
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask


def _fail(file: object) -> None:
    raise OSError("no room")


def test_a_file_size_limit_stops_the_write_whole(tmp_path: Path) -> None:
    """The operating system cuts a real write short, in a process of its own."""
    script = (
        "import resource, pathlib, sys\n"
        "from adagp.files import write_bytes\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "write_bytes(path, b'old')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n    write_bytes(path, b'x' * 100_000)\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(adagp.__file__).parents[1])},
    )
    assert "large" in answer.stdout
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_json_has_no_word_for_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": float("nan"), "b": [float("inf"), 1.0]})
    assert (tmp_path / "x.json").read_text().split() == ["{", '"a":', "null,", '"b":', "[", "null,", "1.0", "]", "}"]
    write_bytes(tmp_path / "x.json", b"{}")
    assert (tmp_path / "x.json").read_bytes() == b"{}"
