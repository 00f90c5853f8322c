"""Several processes on this machine: `python -m benchmarks.distributed`.

Two processes hold VGG-13 in two stages (GPipe) and run BP batches and GP batches in turn. Then 1, 2 and 4 processes
share every batch of ResNet-20 (DistributedDataParallel). Each process has one thread. Printed are seconds per batch of
each phase, medians of interleaved rounds, and the bytes a rank puts into messages; and beside the data-parallel figures
what a small model of them says: work / ranks (as far as there are cores) + bytes carried / bandwidth, fitted to one and
two ranks and checked against four.
"""

import argparse
import json
import os
import socket
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.pipelining import ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, Phase, Plan, models, schedules
from adagp.pipelining import Pipeline, stage_of
from adagp.training.environment import describe

MICRO_BATCHES = 4
WARMUP_BATCHES = 4
PLANS = {"BP": Plan(Phase.BP, "backprop"), "GP": Plan(Phase.GP, "predicted")}


class Phases:
    """A schedule that says what it was told last, so that phases can take turns under the clock."""

    def __init__(self) -> None:
        self.now = "BP"
        self.schedule = schedules.from_function(lambda step: PLANS[self.now], ("backprop", "predicted", "skip"))


def pipeline(rank: int, _count: int, rounds: int, batch: int) -> dict[str, Any]:
    """Seconds per batch of two stages of VGG-13."""
    torch.manual_seed(0)
    network = models.build("vgg13")
    features = list(network.features)  # type: ignore[arg-type]
    # Two convolutions of 128 channels end the first part: about half of the multiply-adds.
    parts = [nn.Sequential(*features[:14]), nn.Sequential(*features[14:], network.head)]
    stage = stage_of(parts, rank, torch.empty(batch // MICRO_BATCHES, 3, 32, 32), torch.device("cpu"))
    phases = Phases()
    gp = AdaGP(stage.submod, torch.optim.SGD(stage.submod.parameters(), lr=1e-3, momentum=0.9), phases.schedule)
    pipe = Pipeline(ScheduleGPipe(stage, MICRO_BATCHES, cross_entropy), gp)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def run(phase: str, batches: int) -> None:
        phases.now = phase
        for _ in range(batches):
            pipe.step(images) if rank == 0 else pipe.step(target=labels)

    return {"seconds": timed(run, rounds), "counts": gp.counts()}


def data_parallel(_rank: int, count: int, rounds: int, batch: int) -> dict[str, Any]:
    """Seconds per batch of ResNet-20, each rank with its share of the batch."""
    torch.manual_seed(0)
    model = DistributedDataParallel(models.build("resnet20"))
    phases = Phases()
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), phases.schedule)
    images, labels = torch.randn(batch // count, 3, 32, 32), torch.randint(0, 10, (batch // count,))

    def run(phase: str, batches: int) -> None:
        phases.now = phase
        for _ in range(batches):
            gp.step(lambda: cross_entropy(model(images), labels))

    seconds = timed(run, rounds)
    return {"seconds": seconds, "bytes": gp.bytes_per_batch(), "counts": gp.counts()}


def timed(run: Callable[[str, int], None], rounds: int, batches: int = 3) -> dict[str, float]:
    """Median seconds per batch of each phase, over rounds in which both take turns with a few batches each."""
    run("BP", WARMUP_BATCHES)
    run("GP", 1)
    found: dict[str, list[float]] = {"BP": [], "GP": []}
    for _ in range(rounds):
        for phase, seconds in found.items():
            distributed.barrier()
            start = perf_counter()
            run(phase, batches)
            distributed.barrier()
            seconds.append((perf_counter() - start) / batches)
    return {phase: statistics.median(seconds) for phase, seconds in found.items()}


def on_ranks(work: Callable[..., dict[str, Any]], count: int, *args: int) -> dict[str, Any]:
    """What rank 0 of `count` processes finds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(_entry, (work, count, port, queue, args), nprocs=count)
    found: dict[str, Any] = queue.get()
    return found


def _entry(
    rank: int, work: Callable[..., dict[str, Any]], count: int, port: int, queue: Any, args: tuple[int, ...]
) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    found = work(rank, count, *args)
    if rank == 0:
        queue.put(found)
    distributed.destroy_process_group()


def modelled_seconds(work: float, ranks: int, cores: int, sent_bytes: float, bytes_per_second: float) -> float:
    """A batch's seconds: its work shared by the ranks that have a core, and a ring's traffic."""
    return work / min(ranks, cores) + 2 * (ranks - 1) / ranks * sent_bytes / bytes_per_second


def fitted_bandwidth(one: dict[str, Any], two: dict[str, Any]) -> float:
    """Bytes per second that explain what two ranks need beyond half the work of one, in BP."""
    beyond = two["seconds"]["BP"] - one["seconds"]["BP"] / 2
    return float(two["bytes"]["BP"] / beyond) if beyond > 0 else float("inf")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6, help="interleaved repetitions; the median counts")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="of the data-parallel part")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    print("measuring two stages of vgg13 ...", file=sys.stderr)
    staged = on_ranks(pipeline, 2, options.rounds, options.batch_size)
    shared = {}
    for ranks in options.ranks:
        print(f"measuring resnet20 on {ranks} ranks ...", file=sys.stderr)
        shared[ranks] = on_ranks(data_parallel, ranks, options.rounds, options.batch_size)
    here = describe(torch.device("cpu"))
    machine = f"{here['processor']}, {os.cpu_count()} cores, one thread a process, batch {options.batch_size}"
    found = {"machine": machine, "pipeline": staged, "data_parallel": shared}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{machine}\n\n{tables(staged, shared)}")
    return 0


def tables(staged: dict[str, Any], shared: dict[int, dict[str, Any]]) -> str:
    """Both parts as Markdown."""
    bp, gp = (staged["seconds"][phase] for phase in ("BP", "GP"))
    lines = ["| VGG-13 in two stages, GPipe | seconds per batch | BP / this |", "|---|---|---|"]
    lines += [f"| BP | {bp:.3f} | 1.00 |", f"| GP | {gp:.3f} | {bp / gp:.2f} |", ""]
    lines += ["| ranks | BP s | GP s | KB sent in BP | KB sent in GP | BP s, modelled |", "|---|---|---|---|---|---|"]
    bandwidth = fitted_bandwidth(shared[1], shared[2]) if {1, 2} <= shared.keys() else None
    for ranks, part in shared.items():
        seconds, sent = part["seconds"], part["bytes"]
        modelled = "-"
        if bandwidth is not None:
            cores = os.cpu_count() or 1
            modelled = f"{modelled_seconds(shared[1]['seconds']['BP'], ranks, cores, sent['BP'], bandwidth):.3f}"
        lines.append(
            f"| {ranks} | {seconds['BP']:.3f} | {seconds['GP']:.3f} | {sent['BP'] / 1e3:.1f} | {sent['GP'] / 1e3:.1f} "
            f"| {modelled} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
