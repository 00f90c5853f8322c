"""Data parallel training with `adagp`: every rank ends with the same weights.

    python examples/ddp.py                               # starts two processes by itself
    torchrun --nproc-per-node 2 examples/ddp.py          # or let torchrun start them

Wrap the model in DistributedDataParallel first, then give `AdaGP` the wrapped model. In BP batches the ranks average
gradients as usual. In GP batches there is no backward pass to do that. The ranks then average the few numbers that the
predictor sees, so they predict the same gradient. The ranks train on different data here, and each prints a checksum of
its weights at the end.
"""

import hashlib
import os
from tempfile import TemporaryDirectory

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, schedules

RANKS, STEPS = 2, 40


def checksum(model: nn.Module) -> str:
    """The first digits of a hash of every weight's bytes."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def train() -> None:
    """What every rank runs."""
    torch.set_num_threads(1)  # the ranks share the cores
    rank = distributed.get_rank()
    torch.manual_seed(0)  # the same first weights everywhere
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 4),
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    gp = AdaGP(model, optimizer, schedules.ladder(steps_per_epoch=10, warmup_epochs=1, rung_epochs=1))

    data = torch.Generator().manual_seed(1 + rank)  # different samples on every rank
    for _ in range(STEPS):
        labels = torch.randint(4, (16,), generator=data)
        images = torch.randn(16, 3, 8, 8, generator=data) + labels[:, None, None, None]
        gp.step(lambda x=images, y=labels: nn.functional.cross_entropy(model(x), y))

    checksums: list[str | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(checksums, checksum(network))
    if rank == 0:
        for number, value in enumerate(checksums):
            print(f"rank {number}: weights {value}")
        print(f"layer updates by source: {gp.counts()}")
        print(f"all ranks hold the same weights: {len(set(checksums)) == 1}")


def spawned(rank: int, rendezvous: str) -> None:
    """Join the ranks that this script started."""
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    train()
    distributed.destroy_process_group()


def main() -> None:
    """Join torchrun's ranks where it started this process; start some otherwise."""
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        train()
        distributed.destroy_process_group()
    else:
        with TemporaryDirectory() as folder:
            multiprocessing.spawn(spawned, args=(f"{folder}/rendezvous",), nprocs=RANKS)


if __name__ == "__main__":
    main()
