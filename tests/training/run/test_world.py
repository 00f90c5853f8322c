"""Runs shared by several processes, started by torchrun as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from adagp.cli import app
from adagp.data import DetectionBatch
from adagp.training import RecipeError
from adagp.training.run.world import World
from adagp.training.tasks.detection import ObjectDetection

LIMIT_SECONDS = 120
OPTIONS = ("--data", "digits", "--model", "cnn", "--epochs", "2", "--train-limit", "640", "--set", "augment=false")


def start(ranks: int, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [*command, "-m", "adagp", "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def alone(*arguments: str) -> str:
    """What a run in this very process prints: no ranks, and no start to wait for."""
    done = CliRunner().invoke(app, ["train", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def weights(folder: Path) -> list[torch.Tensor]:
    return list(torch.load(folder / "model.pt", weights_only=True).values())


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(int(child) for child in children)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_ranks_train_what_one_trains(tmp_path: Path) -> None:
    alone(*OPTIONS, "--method", "bp", "--out", str(tmp_path / "1"))
    code, out, err = finish(start(2, *OPTIONS, "--method", "bp", "--out", str(tmp_path / "2")))
    assert code == 0, err
    assert out.count("written to") == 1  # the first rank alone speaks
    one, two = result(tmp_path / "1"), result(tmp_path / "2")
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert two["scores"] == pytest.approx(one["scores"], abs=0.01)
    for a, b in zip(weights(tmp_path / "1"), weights(tmp_path / "2"), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.skipif(not Path("/proc").exists(), reason="the ranks are found in /proc")
def test_a_run_whose_rank_was_killed_stops_and_resumes(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    code, _, err = finish(start(2, *OPTIONS, "--out", str(whole)))
    assert code == 0, err
    process = start(2, *OPTIONS, "--out", str(broken), "--checkpoint-seconds", "0")
    wait_for(broken / "checkpoint.pt", process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = finish(process)
    assert code != 0
    assert time.monotonic() - killed < 60
    assert not (broken / "result.json").exists()
    code, _, err = finish(start(2, "--out", str(broken), "--resume"))
    assert code == 0, err
    assert "resuming" in err
    assert result(whole)["scores"] == result(broken)["scores"]
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(broken), strict=True))


def test_ctrl_c_leaves_a_run_that_another_number_of_ranks_can_finish(tmp_path: Path) -> None:
    process = start(2, *OPTIONS, "--out", str(tmp_path / "run"), "--checkpoint-seconds", "0")
    wait_for(tmp_path / "run" / "checkpoint.pt", process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to torchrun and to every rank
    code, _, err = finish(process)
    assert code != 0
    assert "--resume" in err
    alone("--out", str(tmp_path / "run"), "--resume")
    assert result(tmp_path / "run")["ranks"] == 1
    assert len(result(tmp_path / "run")["scores"]) == 2


@pytest.mark.slow
def test_a_folder_in_use_stops_every_rank_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    code, _, err = finish(start(2, *OPTIONS, "--out", str(tmp_path)))
    assert code != 0
    assert "already holds a run" in err


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(RecipeError, match="multiple of 3"):
        World(0, 3).check_batch_size(64)


def test_the_ranks_of_a_detection_batch_have_every_image_and_box_once() -> None:
    owners = torch.tensor([0, 0, 1, 3, 4, 4])
    boxes = torch.arange(24.0).reshape(6, 4)
    batch = DetectionBatch(torch.arange(5.0).reshape(5, 1, 1, 1), boxes, torch.arange(6), owners > 2, owners)
    shares = [ObjectDetection.share(None, batch, rank, 2) for rank in range(2)]  # type: ignore[arg-type]
    found = {
        (float(share.images[owner]), *box.tolist(), int(label), bool(difficult))
        for share in shares
        for owner, box, label, difficult in zip(share.owners, share.boxes, share.labels, share.difficult, strict=True)
    }
    wanted = {
        (float(owner), *box.tolist(), int(label), bool(owner > 2))
        for owner, box, label in zip(owners, boxes, torch.arange(6), strict=True)
    }
    assert found == wanted
    assert sum(len(share.images) for share in shares) == 5
