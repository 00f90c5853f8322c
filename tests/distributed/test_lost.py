"""A rank dies: the others say so at once, with the remedy, and all resume from what they had saved."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, schedules
from adagp.distributed.lost import LostRankError, is_lost
from adagp.layers.sharding import is_distributed
from tests.nets import batches, build, loss_of, sgd
from tests.ranks import on_ranks, on_ranks_one_killed

STEPS, SAVED = 9, 3


def test_an_error_of_a_message_says_that_a_rank_is_lost_and_others_do_not() -> None:
    assert is_lost(RuntimeError("[pair.cc:538] Connection closed by peer [127.0.0.1]:4711"))
    assert is_lost(RuntimeError("Application timeout caused pair closure"))  # of a message beside one that timed out
    assert is_lost(distributed.DistNetworkError("Timed out"))
    assert not is_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost(OSError("Connection reset by peer"))  # of a closure that reads its data from elsewhere
    assert not is_lost(None)


def train(rank: int, count: int, way: str, killed_at: int, folder: str) -> Any:
    """Train, resuming where something was saved; the last rank kills itself once. Returns the weights, or the error."""
    network = build().eval()  # batch norm would see other parts of a batch with another number of ranks
    if way == "FSDP2":
        for module in network:
            if isinstance(module, nn.Conv2d | nn.Linear):
                fully_shard(module)
        fully_shard(network)
    model = DistributedDataParallel(network) if way == "DDP" else network
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    path = Path(folder, "saved")
    resumes = path.exists()
    if resumes:
        load(network, gp, path)
        assert gp.step_index == SAVED
    try:
        for step in range(gp.step_index, STEPS):
            if step == SAVED and not resumes:
                save(network, gp, path)
            if step == killed_at and rank == count - 1 and not Path(folder, "killed").exists():
                Path(folder, "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = batches(step + 1)[step]
            x, y = x.chunk(count)[rank], y.chunk(count)[rank]
            gp.step(lambda x=x, y=y: loss_of(model, x, y))
    except LostRankError as error:
        return str(error)
    assert gp.counts()["predicted"] > 0
    held = [part.full_tensor() if is_distributed(part) else part for part in network.parameters()]
    return [part.detach().numpy() for part in held]


def state(network: nn.Module, gp: AdaGP) -> dict[str, Any]:
    model, optimizer = get_state_dict(network, gp.optimizer)
    return {"model": model, "optimizer": optimizer, "gp": gp}


def save(network: nn.Module, gp: AdaGP, path: Path) -> None:
    """All ranks of a sharded model together, or the first of those that hold the same."""
    if gp.model is network:
        checkpoint.save(state(network, gp), checkpoint_id=path)
        return
    if distributed.get_rank() == 0:
        path.parent.mkdir(exist_ok=True)
        torch.save([part.state_dict() for part in (network, gp.optimizer, gp)], path)
    distributed.barrier()


def load(network: nn.Module, gp: AdaGP, path: Path) -> None:
    if gp.model is not network:
        for part, saved in zip((network, gp.optimizer, gp), torch.load(path, weights_only=True), strict=True):
            part.load_state_dict(saved)
        return
    parts = state(network, gp)
    checkpoint.load(parts, checkpoint_id=path)
    set_state_dict(network, gp.optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])


@pytest.mark.parametrize(
    ("way", "phase", "killed_at"),
    [
        ("FSDP2", "GP", 6),
        *[
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("FSDP2", "BP", 5), ("DDP", "GP", 6), ("DDP", "BP", 5))
        ],
    ],
)
def test_when_a_rank_dies_the_others_say_so_at_once_and_all_resume(
    way: str, phase: str, killed_at: int, tmp_path: Path
) -> None:
    whole = on_ranks(2, train, way, STEPS, str(tmp_path / "whole"))[0]
    (message,), seconds = on_ranks_one_killed(2, 1, train, way, killed_at, str(tmp_path / "broken"))
    assert f"another rank did not answer at step {killed_at} ({phase})" in message
    assert "start all ranks again, and resume from the last checkpoint" in message
    assert seconds < 20
    for found in on_ranks(2, train, way, STEPS, str(tmp_path / "broken")):
        for mine, expected in zip(found, whole, strict=True):
            assert (mine == expected).all()
