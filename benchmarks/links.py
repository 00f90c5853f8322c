"""Slow and distant links, really: `python -m benchmarks.links`.

Two processes share every batch, each in a network namespace of its own, with a link of a given rate and delay in
between (`benchmarks.namespaces`). What a TCP connection over it gives is measured first, and printed. It needs root and
iproute2, and is skipped without them.

Nine ways take turns. Data parallel: plain DistributedDataParallel; the same with torch's PowerSGD hook; torch's
post-local SGD, which averages weights in every fourth batch; and ADA-GP with one GP batch for each BP batch. As a
pipeline of two stages and four micro-batches, cut where little crosses: GPipe, 1F1B, zero bubble, GP batches alone, and
local losses. A batch has the images of both ranks in all of them. Printed are median seconds per batch, over turns of
four batches. What a batch of the data-parallel ways is worth is measured by `benchmarks.worth`.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, cycle, product, repeat
from time import monotonic, perf_counter, sleep
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, models
from adagp.training.environment import describe
from benchmarks.distributed import Phases
from benchmarks.namespaces import ADDRESSES, Link, link, why_not
from benchmarks.pipelines import Ways

TURN = 4
MEGABITS = (1000, 100)
DELAYS_MS = (0, 10, 50)
PORT = 29577


# --- the ways to train, in each process


@dataclass(frozen=True)
class Given:
    """What a way trains.

    Attributes:
        network: Not wrapped yet.
        loss: Of the wrapped network, on the images of this rank.
        optimizer: Of the network's parameters.
        warm_up: The number of plain batches at the start.
    """

    network: nn.Module
    loss: Callable[[nn.Module], torch.Tensor]
    optimizer: torch.optim.Optimizer
    warm_up: int = 2


Batch = Callable[[], Any]
"""What runs one batch on this rank."""


def plain(given: Given) -> Batch:
    """Backpropagation."""
    return stepping(in_one_bucket(given.network), given, given.optimizer)


def stepping(model: nn.Module, given: Given, optimizer: torch.optim.Optimizer) -> Batch:
    def run() -> None:
        given.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def power_sgd(given: Given) -> Batch:
    """Gradients are sent as matrices of rank 1."""
    model = in_one_bucket(given.network)
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=1,
        start_powerSGD_iter=given.warm_up,
        use_error_feedback=True,
        warm_start=True,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return stepping(model, given, given.optimizer)


def local_sgd(given: Given) -> Batch:
    """Each rank trains alone, and the weights are averaged once a turn."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # its package warns when it is imported

    model = in_one_bucket(given.network)
    state = post_localSGD_hook.PostLocalSGDState(
        process_group=None, subgroup=None, start_localSGD_iter=given.warm_up, post_local_gradient_allreduce=False
    )
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=TURN, warmup_steps=given.warm_up)
    return stepping(model, given, PostLocalSGDOptimizer(given.optimizer, averager))


def ada_gp(given: Given) -> Batch:
    """BP and GP batches take turns."""
    model = in_one_bucket(given.network)
    phases, order = Phases(), chain(repeat("BP", given.warm_up), cycle(("BP", "GP")))
    gp = AdaGP(model, given.optimizer, phases.schedule)

    def run() -> None:
        phases.now = next(order)
        gp.step(lambda: given.loss(model))

    return run


WAYS = {"plain": plain, "PowerSGD": power_sgd, "post-local SGD": local_sgd, "ADA-GP 1:1": ada_gp}
PIPELINES = ("GPipe", "1F1B", "zero bubble", "GP", "local, 4 micro-batches")
NAMES = (*WAYS, *PIPELINES)


def rank_main(rank: int, network: str, images: int, rounds: int) -> None:
    """One of the two processes; the first prints the median seconds of each way."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://{ADDRESSES[0]}:{PORT}", rank=rank, world_size=2)
    inputs, labels = torch.randn(images, 3, 32, 32), torch.randint(0, 10, (images,))
    runs: dict[str, Batch] = {}
    for name, way in WAYS.items():
        torch.manual_seed(0)
        own = models.build(network)
        optimizer = torch.optim.SGD(own.parameters(), lr=1e-3, momentum=0.9)
        runs[name] = way(Given(own, lambda model: cross_entropy(model(inputs), labels), optimizer))
    whole = torch.randn(2 * images, 3, 32, 32), torch.randint(0, 10, (2 * images,))
    runs |= Ways(rank, network, *whole, cut="narrow").build(PIPELINES)
    found: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(0)
    for round_ in range(rounds + 1):
        for name in order.sample(list(runs), len(runs)):
            distributed.barrier()
            start = perf_counter()
            for _ in range(TURN):
                runs[name]()
            distributed.barrier()
            if round_:  # the first is a warm-up
                found[name].append((perf_counter() - start) / TURN)
    if rank == 0:
        print(json.dumps({name: statistics.median(seconds) for name, seconds in found.items()}), flush=True)
    distributed.destroy_process_group()


def in_one_bucket(network: nn.Module) -> DistributedDataParallel:
    """The wrapper with all gradients in one message: torch's PowerSGD hook mixes up those of several under gloo."""
    usual = distributed._DEFAULT_FIRST_BUCKET_BYTES
    distributed._DEFAULT_FIRST_BUCKET_BYTES = 2**30
    try:
        return DistributedDataParallel(network, bucket_cap_mb=1024)
    finally:
        distributed._DEFAULT_FIRST_BUCKET_BYTES = usual


# --- the processes


def measure(over: Link, network: str, images: int, rounds: int, limit_seconds: float) -> dict[str, float]:
    """Median seconds of each way over a link; empty where there is no result in time."""
    command = [sys.executable, "-m", "benchmarks.links", "--networks", network]
    command += ["--images", str(images), "--rounds", str(rounds)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": over.device, "OMP_NUM_THREADS": "1"}
    processes = [over.start(rank, [*command, "--rank", str(rank)], environment) for rank in range(2)]
    deadline = monotonic() + limit_seconds
    try:
        while any(process.poll() is None for process in processes):
            if monotonic() > deadline or any(process.poll() for process in processes):
                return {}
            sleep(0.2)
        assert processes[0].stdout is not None
        found: dict[str, float] = json.loads(processes[0].stdout.read())
        return found
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def rows(
    megabits: int, delay_ms: int, networks: Iterable[str], images: int, rounds: int, limit: float
) -> list[dict[str, Any]]:
    """One row for each network, over one link."""
    found: list[dict[str, Any]] = []
    with link(megabits, delay_ms) as over:
        asked = {"megabits": megabits, "delay_ms": delay_ms, "images": images}
        tcp = asdict(over.measured())
        for network in networks:
            print(f"measuring {network} at {megabits} Mbit/s, {delay_ms} ms ...", file=sys.stderr)
            seconds = measure(over, network, images, rounds, limit)
            why = "" if seconds else f"a rank failed, or no result in {limit:g} s"
            row = {"network": network, **asked, "tcp": tcp, "link": over.kind}
            found.append({**row, "seconds": seconds, "skipped": why})
    return [{**row, **over.report} for row in found]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet20", "vgg13"])
    parser.add_argument("--images", type=int, default=32, help="of each rank in a batch")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved turns of each way; the median counts")
    parser.add_argument("--megabits", type=int, nargs="+", default=list(MEGABITS))
    parser.add_argument("--delays-ms", type=int, nargs="+", default=list(DELAYS_MS), help="one way")
    parser.add_argument("--limit-seconds", type=float, default=900, help="for each network and link")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options.rank, options.networks[0], options.images, options.rounds)
        return 0
    reason = why_not()
    if reason:
        print(f"benchmarks.links is skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces are removed then too
    found: list[dict[str, Any]] = []
    try:
        for megabits, delay_ms in product(options.megabits, options.delays_ms):
            found += rows(megabits, delay_ms, options.networks, options.images, options.rounds, options.limit_seconds)
    finally:  # what is measured is worth printing where the rest was stopped
        print(report(found, options.images, options.json))
    return 0


def report(found: Sequence[dict[str, Any]], images: int, as_json: bool) -> str:
    """Everything, with the machine it was measured on."""
    machine = f"{describe(torch.device('cpu'))['processor']}, 2 ranks, one thread each, {images} images a rank"
    return json.dumps({"machine": machine, "links": found}, indent=2) if as_json else table(machine, found)


def table(machine: str, found: Sequence[dict[str, Any]]) -> str:
    """Everything as Markdown."""
    heads = ("network", "Mbit/s", "ms one way", "TCP: Mbit/s", "ms there and back", *NAMES)
    lines = [machine, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in found:
        tcp = row["tcp"]
        cells = [row["network"], str(row["megabits"]), str(row["delay_ms"])]
        cells += [f"{tcp['bits_per_second'] / 1e6:.0f}", f"{1e3 * tcp['round_trip_seconds']:.1f}"]
        cells += [f"{row['seconds'][name]:.3f}" for name in NAMES] if row["seconds"] else [row["skipped"]]
        cells += [""] * (len(heads) - len(cells))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
