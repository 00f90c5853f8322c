"""Two real processes and one run folder."""

import errno
import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adagp.training.errors import RunFolderError
from adagp.training.run.lock import lock

HOLD = """
import os, sys, time
from pathlib import Path
from adagp.training.run.lock import lock
held = lock(Path(sys.argv[1]))
if os.fork() == 0:
    print("held", flush=True)  # the child lets go of the lock before it runs a line
    time.sleep(5)
    os._exit(0)
time.sleep(600)
"""
TRAIN = ["--model", "cnn", "--data", "digits", "--method", "bp", "--epochs", "1", "--set", "train_limit=64"]


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[int]:
    """The number of a process that holds the lock, with a child like those that load data; it is killed at the end."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            process.kill()  # its child lives on and must not keep the lock


def test_a_folder_in_use_is_refused_until_its_process_is_dead(tmp_path: Path) -> None:
    with (
        held_elsewhere(tmp_path) as number,
        pytest.raises(RunFolderError, match=rf"in use by another process \(pid {number}\): wait until"),
    ):
        lock(tmp_path)
    assert lock(tmp_path).is_locked


def test_a_process_on_a_full_disk_holds_the_lock_without_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str, encoding: str) -> int:
        path.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    with held_elsewhere(tmp_path):
        (tmp_path / ".lock").write_bytes(b"")
        with pytest.raises(RunFolderError, match=r"in use by another process \(unnamed\): wait until"):
            lock(tmp_path)
    monkeypatch.setattr(Path, "write_text", full)
    assert lock(tmp_path).is_locked
    assert (tmp_path / ".lock").read_bytes() == b""


def test_one_process_shares_its_lock_and_gives_it_back(tmp_path: Path) -> None:
    one = lock(tmp_path)
    assert lock(tmp_path / ".") is one
    del one
    gc.collect()
    with held_elsewhere(tmp_path):  # would not get it otherwise
        pass


def test_training_says_that_a_folder_is_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-m", "adagp", "train", *TRAIN, "--out", str(folder)]
    with held_elsewhere(folder):
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "is in use by another process" in " ".join(refused.stderr.split())
    assert not (folder / "recipe.json").exists()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
