import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.training import CheckpointError
from adagp.training.run import checkpoint


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    state: dict[str, Any] = {"weight": torch.arange(5.0), "step": 3, "inner": [1.5, "x", None]}
    checkpoint.save(path, state)
    loaded = checkpoint.load(path)
    assert torch.equal(loaded.pop("weight"), state.pop("weight"))
    assert loaded == state
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("where", [10, 200, -1])
def test_every_flipped_byte_is_noticed(tmp_path: Path, where: int) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"weight": torch.arange(5.0)})
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged|format|not an adagp checkpoint"):
        checkpoint.load(path)


@pytest.mark.parametrize("length", [0, 5, 90, 400])
def test_a_truncated_file_is_noticed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"weight": torch.arange(5.0)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"damaged|not an adagp checkpoint"):
        checkpoint.load(path)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    torch.save({"weight": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="not an adagp checkpoint"):
        checkpoint.load(path)
    path.write_bytes(b"adagp-checkpoint-9 abc 0\n")
    with pytest.raises(CheckpointError, match="adagp-checkpoint-9"):
        checkpoint.load(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(tmp_path / "absent.pt")


def test_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"step": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left.*previous checkpoint is untouched.*Free"):
        checkpoint.save(path, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load(path) == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.slow  # not for its time: where it cannot run, `make test` has nothing to skip
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_really_full_disk(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this system does not let us mount a small disk")
    try:
        path = tmp_path / "checkpoint.pt"
        checkpoint.save(path, {"step": 1})
        with pytest.raises(CheckpointError, match=r"No space left.*previous checkpoint is untouched"):
            checkpoint.save(path, {"weights": torch.zeros(100_000)})
        assert checkpoint.load(path) == {"step": 1}
        assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
