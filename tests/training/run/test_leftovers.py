"""What killed writes leave behind, by processes that are really killed in the middle of one."""

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

import adagp
from adagp.data import DataSet
from adagp.files import remove_leftovers, write_atomically, write_bytes
from adagp.training import Recipe, Run, RunFolder, Settings, compare

WRITE = """
import sys
from pathlib import Path
from adagp.files import write_atomically

def write(file):
    file.write(b"x" * 100_000)
    file.flush()
    print("writing", flush=True)
    sys.stdin.readline()
    file.write(b"end")

write_atomically(Path(sys.argv[1]), write)
"""


@contextmanager
def writing(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process in the middle of writing `path`; it goes on when it is sent a line."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path)],
        env=os.environ | {"PYTHONPATH": str(Path(adagp.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process


def kill_in_the_middle_of_writing(path: Path) -> None:
    with writing(path) as process:
        process.kill()
    assert parts(path.parent), "the test needs a leftover"


def parts(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".part"))


def test_a_new_write_removes_what_killed_writes_of_the_file_left(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for _ in range(3):
        kill_in_the_middle_of_writing(path)
        assert len(parts(tmp_path)) == 1  # the writer before cleaned up as well
    write_bytes(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert path.read_bytes() == b"new"


def test_a_write_under_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with writing(path) as process:
        before = parts(tmp_path)
        write_bytes(path, b"ours")
        remove_leftovers(tmp_path)
        assert parts(tmp_path) == before
        assert path.read_bytes() == b"ours"
        process.communicate("go on\n")
    assert process.returncode == 0
    assert path.read_bytes() == b"x" * 100_000 + b"end"
    assert parts(tmp_path) == []


def test_so_is_one_of_another_thread(tmp_path: Path) -> None:
    path, begun, go_on = tmp_path / "file", threading.Event(), threading.Event()

    def slowly(file: IO[bytes]) -> None:
        begun.set()
        go_on.wait(30)
        file.write(b"slow")

    thread = threading.Thread(target=write_atomically, args=(path, slowly))
    thread.start()
    begun.wait(30)
    remove_leftovers(tmp_path)
    go_on.set()
    thread.join()
    assert path.read_bytes() == b"slow"


def test_a_file_is_still_held_while_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise another process could take it for a leftover between the last byte and the new name."""
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        remove_leftovers(tmp_path)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    write_bytes(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


@pytest.mark.parametrize("held", [True, False])
def test_a_new_file_that_is_taken_for_a_leftover_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """Another process may look between the making of a file and its lock, and have removed it or be about to."""
    made, locks = os.open, []

    def seen_at_once(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = made(path, flags, mode)
        if flags & os.O_CREAT and not locks:
            locks.append(made(path, os.O_RDONLY))
            fcntl.flock(locks[0], fcntl.LOCK_EX)
            path.unlink()
            if not held:
                os.close(locks[0])
        return descriptor

    monkeypatch.setattr(os, "open", seen_at_once)
    write_bytes(tmp_path / "file", b"whole")
    monkeypatch.undo()
    assert len(locks) == 1
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"whole")]


def test_what_is_not_a_leftover_stays(tmp_path: Path) -> None:
    """Files of the user, and things that would make the cleaning wait."""
    names = ["mine.part", ".film.part", ".film.mkv.0123456g.part", ".0123abcd.part"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / ".pipe.0123abcd.part")
    (tmp_path / ".folder.0123abcd.part").mkdir()
    write_bytes(tmp_path / "film", b"")
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "absent")
    assert parts(tmp_path) == sorted([*names, ".pipe.0123abcd.part", ".folder.0123abcd.part"])


def test_resuming_a_run_removes_the_leftovers_of_every_file(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    folder = RunFolder(tmp_path / "run")
    run = Run(recipe, digits)
    folder.prepare(run, resume=False)
    for name in ("checkpoint.pt", "model.pt", "metrics.json"):
        kill_in_the_middle_of_writing(folder.path / name)
    assert len(parts(folder.path)) == 3
    folder.prepare(run, resume=True)
    assert parts(folder.path) == []


def test_resuming_a_comparison_does_too(tmp_path: Path, recipe: Recipe, digits: DataSet) -> None:
    settings = Settings(recipe.replace(method="bp", epochs=1), ("bp",), (0,))

    def go(resume: bool) -> None:
        compare(settings, digits, tmp_path, device=Run(recipe, digits).device, resume=resume)

    go(resume=False)
    kill_in_the_middle_of_writing(tmp_path / "report.html")
    kill_in_the_middle_of_writing(tmp_path / "bp-seed0" / "model.pt")
    go(resume=True)
    assert parts(tmp_path) == parts(tmp_path / "bp-seed0") == []
