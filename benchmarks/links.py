"""Slow and distant links, really: `python -m benchmarks.links`.

Two processes share every batch, each in a network namespace of its own. The only way between the namespaces is a
virtual cable, both ends of which are inside them, limited by `tc` to a rate and, where the kernel has netem, a delay.
Nothing leaves the namespaces, which are removed at the end, as are the processes in them. It needs root and iproute2,
and is skipped without them.

Seven ways take turns. Data parallel: plain DistributedDataParallel; the same with torch's PowerSGD hook; torch's
post-local SGD, which averages weights in every fourth batch; and ADA-GP with one GP batch for each BP batch. As a
pipeline of two stages and four micro-batches, cut where little crosses: GPipe, 1F1B and local losses. A batch has the
images of both ranks in all of them. Printed are median seconds per batch, over turns of four batches. What a batch of
each way is worth for the accuracy is not measured here.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
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
from benchmarks.pipelines import Ways

TURN = 4
MEGABITS = (1000, 100)
DELAYS_MS = (0, 10, 50)
ADDRESSES = ("10.253.77.1", "10.253.77.2")
"""Private ones, which exist inside the namespaces only."""
PORT = 29577


# --- the ways to train, in each process


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def plain(model: DistributedDataParallel, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """One batch of backpropagation; `model` may have a hook that compresses."""
    return stepping(sgd(model), loss)


def stepping(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    def run() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def power_sgd(model: DistributedDataParallel, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Gradients are sent as matrices of rank 1, from the third batch on."""
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2, use_error_feedback=True, warm_start=True
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return plain(model, loss)


def local_sgd(model: DistributedDataParallel, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Each rank trains alone, and the weights are averaged once a turn."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # its package warns when it is imported

    alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())][distributed.get_rank()]
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=0)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return stepping(PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(period=TURN, warmup_steps=0)), loss)


def ada_gp(model: DistributedDataParallel, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """BP and GP batches take turns."""
    phases, order = Phases(), cycle(("BP", "GP"))
    gp = AdaGP(model, sgd(model), phases.schedule)

    def run() -> None:
        phases.now = next(order)
        gp.step(loss)

    return run


WAYS = {"plain": plain, "PowerSGD": power_sgd, "post-local SGD": local_sgd, "ADA-GP 1:1": ada_gp}
PIPELINES = ("GPipe", "1F1B", "local, 4 micro-batches")
NAMES = (*WAYS, *PIPELINES)


def rank_main(rank: int, network: str, images: int, rounds: int) -> None:
    """One of the two processes; the first prints the median seconds of each way."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://{ADDRESSES[0]}:{PORT}", rank=rank, world_size=2)
    inputs, labels = torch.randn(images, 3, 32, 32), torch.randint(0, 10, (images,))
    runs: dict[str, Callable[[], None]] = {}
    for name, way in WAYS.items():
        torch.manual_seed(0)
        model = in_one_bucket(models.build(network))
        runs[name] = way(model, lambda model=model: cross_entropy(model(inputs), labels))  # type: ignore[misc]
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


# --- the link


def why_not() -> str:
    """What is missing to make namespaces, or an empty string."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "it needs root, to make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"it needs iproute2 ({', '.join(missing)} not found)"
    probe = subprocess.run(["ip", "netns", "add", _space("probe")], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"the kernel gives no network namespaces here ({probe.stderr.strip()})"
    _do("ip", "netns", "del", _space("probe"))
    return ""


@contextmanager
def link(megabits: int, delay_ms: int) -> Iterator[str]:
    """Two namespaces with a cable in between; gives why the kernel cannot make it, or an empty string."""
    spaces = [_space(str(rank)) for rank in range(2)]
    try:
        for space in spaces:
            _do("ip", "netns", "add", space)
        _do("ip", "-n", spaces[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", spaces[1])
        problem = ""
        for space, address in zip(spaces, ADDRESSES, strict=True):
            _do("ip", "-n", space, "link", "set", "lo", "up")
            _do("ip", "-n", space, "address", "add", f"{address}/30", "dev", "cable")
            _do("ip", "-n", space, "link", "set", "cable", "up")
            problem = problem or _limit(space, megabits, delay_ms)
        yield problem
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def _limit(space: str, megabits: int, delay_ms: int) -> str:
    """Limit what leaves a namespace; a round trip takes twice the delay. Returns why that cannot be."""
    limits = [["netem", "delay", f"{delay_ms}ms", "rate", f"{megabits}mbit", "limit", "100000"]]
    if not delay_ms:
        limits.append(["tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "200ms"])
    for limit in limits:
        made = subprocess.run(
            ["tc", "-n", space, "qdisc", "add", "dev", "cable", "root", *limit],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode == 0:
            return ""
    return f"tc {limits[-1][0]}: {made.stderr.strip()}"


def measure(network: str, images: int, rounds: int, limit_seconds: float) -> dict[str, float]:
    """Median seconds of each way over the link that is up now."""
    command = [sys.executable, "-m", "benchmarks.links", "--networks", network]
    command += ["--images", str(images), "--rounds", str(rounds)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", _space(str(rank)), *command, "--rank", str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
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
            process.wait()


def _space(name: str) -> str:
    return f"adagp-{os.getpid()}-{name}"


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


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
    rows: list[dict[str, Any]] = []
    for megabits in options.megabits:
        for delay_ms in options.delays_ms:
            with link(megabits, delay_ms) as problem:
                for network in options.networks:
                    print(f"measuring {network} at {megabits} Mbit/s, {delay_ms} ms ...", file=sys.stderr)
                    seconds = {} if problem else measure(network, options.images, options.rounds, options.limit_seconds)
                    why = problem or ("" if seconds else f"a rank failed, or no result in {options.limit_seconds:g} s")
                    row = {"network": network, "megabits": megabits, "delay_ms": delay_ms}
                    rows.append({**row, "seconds": seconds, "skipped": why})
    machine = f"{describe(torch.device('cpu'))['processor']}, 2 ranks, one thread each, {options.images} images a rank"
    print(json.dumps({"machine": machine, "links": rows}, indent=2) if options.json else table(machine, rows))
    return 0


def table(machine: str, rows: Sequence[dict[str, Any]]) -> str:
    """Everything as Markdown."""
    lines = [machine, "", f"| network | Mbit/s | ms | {' | '.join(NAMES)} |", "|---" * (3 + len(NAMES)) + "|"]
    for row in rows:
        cells = [f"{row['seconds'][name]:.3f}" for name in NAMES] if row["seconds"] else [row["skipped"]]
        cells += [""] * (len(NAMES) - len(cells))
        lines.append(f"| {row['network']} | {row['megabits']} | {row['delay_ms']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
