"""FSDP2 beside DistributedDataParallel: `python -m benchmarks.sharded`.

2 and 4 processes on this machine train VGG-13: plain BP batches, BP batches with the predictor learning, and GP
batches. Printed is what each rank needs and sends. Memory is the peak of the process above what it had before the
network was built, once a small one was trained in the same way: weights, gradients, momentum, the predictor's means,
torch's buffers for messages, and the activations of the rank's share of a batch. Bytes are those that a rank sends
where messages go around a ring, without the buffers of batch norm.
"""

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, models
from adagp.training.environment import describe
from benchmarks.distributed import KINDS, RANKS, WARMUP_BATCHES, Phases, on_ranks
from benchmarks.scaling import ring_share

WAYS = ("DDP", "FSDP2")
TIMES_A_RING = {  # how many times a ring goes around; newer torch has other names for two of them
    "all_reduce": 2,
    "all_gather_into_tensor": 1,
    "all_gather_single": 1,
    "reduce_scatter_tensor": 1,
    "reduce_scatter_single": 1,
}


def train(_rank: int, count: int, way: str, batch: int) -> dict[str, dict[str, float]]:
    """What rank 0 needs and sends in each kind of batch."""
    images, labels = torch.randn(batch // count, 3, 32, 32), torch.randint(0, 10, (batch // count,))
    Training("resnet14", way, images, labels).warm_up()  # torch imports much of itself only when it is used
    gc.collect()
    start = memory("VmRSS")
    training = Training("vgg13", way, images, labels)
    training.warm_up()
    gradients = ring_share(count) * sum(part.nbytes for part in training.model.parameters())
    found = {}
    for kind in KINDS:
        distributed.barrier()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        with sent_bytes(count) as sent:
            training.run(kind)
        by_reducer = gradients if way == "DDP" and kind != "GP" else 0
        found[kind] = {"peak_bytes": memory("VmHWM") - start, "sent_bytes": sum(sent) + by_reducer}
    return found


def memory(field: str) -> int:
    """A figure of `/proc/self/status` in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


class Training:
    """One network on all ranks, trained in one of two ways."""

    def __init__(self, network: str, way: str, images: torch.Tensor, labels: torch.Tensor) -> None:
        torch.manual_seed(0)
        own = models.build(network)
        self.model = sharded(own) if way == "FSDP2" else DistributedDataParallel(own)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self._phases = Phases()
        self._gp = AdaGP(self.model, self._optimizer, self._phases.schedule)
        self._images, self._labels = images, labels

    def warm_up(self) -> None:
        for kind in ("BP", *KINDS):
            for _ in range(WARMUP_BATCHES):
                self.run(kind)

    def run(self, kind: str) -> None:
        if kind == "plain":
            self._loss().backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        else:
            self._phases.now = kind
            self._gp.step(self._loss)

    def _loss(self) -> torch.Tensor:
        return cross_entropy(self.model(self._images), self._labels)


def sharded(network: nn.Module) -> nn.Module:
    """Every layer by itself, and the rest together."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fully_shard(module)
    fully_shard(network)
    return network


@contextmanager
def sent_bytes(count: int) -> Iterator[list[float]]:
    """What a rank sends by each message that Python asks for; those of a reducer are its own."""
    sent: list[float] = []
    originals = {name: getattr(distributed, name) for name in TIMES_A_RING if hasattr(distributed, name)}

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            whole = max(part.nbytes for part in (*args, *options.values()) if isinstance(part, torch.Tensor))
            sent.append(TIMES_A_RING[name] * ring_share(count) / 2 * whole)
            return original(*args, **options)

        return call

    for name, original in originals.items():
        setattr(distributed, name, counted(name, original))
    try:
        yield sent
    finally:
        for name, original in originals.items():
            setattr(distributed, name, original)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16, help="a multiple of 4")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        print("benchmarks.sharded reads peak memory from /proc, which this system does not have: skipped")
        return 0
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # of the ranks: memory goes back to the system when it is freed
    found = {ranks: {way: on_ranks(train, ranks, way, options.batch_size) for way in WAYS} for ranks in RANKS}
    machine = f"{describe(torch.device('cpu'))['processor']}, one thread a process, batch {options.batch_size}"
    print(json.dumps({"machine": machine, "found": found}, indent=2) if options.json else table(machine, found))
    return 0


def table(machine: str, found: dict[int, dict[str, dict[str, dict[str, float]]]]) -> str:
    """Everything as Markdown."""
    lines = [machine, "", "| ranks | | batch | peak MB of a rank | MB a rank sends |", "|---" * 5 + "|"]
    lines += [
        f"| {ranks} | {way} | {kind} | {part['peak_bytes'] / 1e6:.0f} | {part['sent_bytes'] / 1e6:.1f} |"
        for ranks, ways in found.items()
        for way, kinds in ways.items()
        for kind, part in kinds.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
