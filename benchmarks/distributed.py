"""Several processes on this machine: `python -m benchmarks.distributed`.

Two processes hold VGG-13 in two stages (GPipe) and run BP batches and GP batches in turn. Then 2 and 4 processes share
every batch of ResNet-20 (DistributedDataParallel): plain BP batches, BP batches with the predictor learning, and GP
batches take turns. Each process has one thread. Printed are median seconds per batch and what a rank sends.

Beside the data-parallel seconds stands what `benchmarks.scaling` says. It is given the work of one rank, measured with
a copy on every core and no messages; what an all-reduce costs, measured with nothing else to do; and the number of
messages and bytes of each kind of batch. None of the seconds it is held against are used to make it. It then computes
what cannot be measured here: up to 64 ranks with a core each, behind networks of three speeds.
"""

import argparse
import json
import os
import random
import socket
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.pipelining import ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, Phase, Plan, models, schedules
from adagp.distributed import Pipeline, stage_of
from adagp.training.environment import describe
from benchmarks.scaling import Traffic, Transport, batch_seconds, speed_up

MICRO_BATCHES = 4
WARMUP_BATCHES = 4
TURN_BATCHES = 3
PLANS = {"BP": Plan(Phase.BP, "backprop"), "GP": Plan(Phase.GP, "predicted")}
KINDS = ("plain", "BP", "GP")
RANKS = (2, 4)
BEYOND_RANKS = (2, 4, 8, 16, 32, 64)
GIGABITS = (1, 10, 100)
LARGE_BYTES = 2**20  # about what ResNet-20's gradients have


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

    def run(phase: str) -> None:
        phases.now = phase
        pipe.step(images) if rank == 0 else pipe.step(target=labels)

    seconds = timed(run, ("BP", "GP"), rounds)
    pipe.finish()
    return {"seconds": seconds, "counts": gp.counts()}


def work(rank: int, count: int, rounds: int, image_counts: Sequence[int]) -> dict[int, dict[str, float]]:
    """Seconds of each kind of batch of so many images in one rank, while every other process does the same."""
    alone = [distributed.new_group([other]) for other in range(count)][rank]
    return {images: Shared(images, alone).measure(rounds)["seconds"] for images in image_counts}


def data_parallel(_rank: int, count: int, rounds: int, batch: int) -> dict[str, Any]:
    """Seconds and traffic of each kind of batch, each rank with its share of it."""
    return Shared(batch // count, distributed.group.WORLD).measure(rounds)


class Shared:
    """ResNet-20 on the ranks of a group."""

    def __init__(self, images: int, group: distributed.ProcessGroup | None) -> None:
        torch.manual_seed(0)
        self._model = DistributedDataParallel(models.build("resnet20"), process_group=group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._phases = Phases()
        self._gp = AdaGP(self._model, self._optimizer, self._phases.schedule)
        self._images, self._labels = torch.randn(images, 3, 32, 32), torch.randint(0, 10, (images,))
        # The wrapper sends the buffers of each type as one message.
        self._buffer_messages = len({buffer.dtype for buffer in self._model.buffers()})
        self._backend = self._model.process_group._get_backend(torch.device("cpu"))
        self._batches: Counter[str] = Counter()
        self._broadcasts: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._own_bytes: Counter[str] = Counter()

    def measure(self, rounds: int) -> dict[str, Any]:
        seconds = timed(self._run, KINDS, rounds)
        return {"seconds": seconds, "traffic": {kind: self._traffic(kind) for kind in KINDS}}

    def _run(self, kind: str) -> None:
        earlier = self._backend._get_sequence_number_for_group()
        self._batches[kind] += 1
        self._broadcasts[kind] += self._buffer_messages * self._model.will_sync_module_buffers()
        if kind == "plain":
            self._loss().backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        else:
            self._phases.now = kind
            with own_messages() as sent:
                self._gp.step(self._loss)
            self._own_bytes[kind] += sum(sent)
        self._messages[kind] += self._backend._get_sequence_number_for_group() - earlier

    def _loss(self) -> torch.Tensor:
        return cross_entropy(self._model(self._images), self._labels)

    def _traffic(self, kind: str) -> dict[str, float]:
        broadcasts = self._broadcasts[kind] / self._batches[kind]
        gradients = 0 if kind == "GP" else _bytes(self._model.parameters())
        buffers = broadcasts / self._buffer_messages * _bytes(self._model.buffers())
        sent = gradients + buffers + self._own_bytes[kind] / self._batches[kind]
        messages = self._messages[kind] / self._batches[kind]
        return {"reductions": messages - broadcasts, "broadcasts": broadcasts, "sent_bytes": sent}


@contextmanager
def own_messages() -> Iterator[list[int]]:
    """The bytes of every all-reduce that `adagp` asks for; those of DistributedDataParallel are its reducer's own."""
    sent: list[int] = []
    original = distributed.all_reduce

    def all_reduce(tensor: torch.Tensor, **options: Any) -> Any:
        sent.append(tensor.nbytes)
        return original(tensor, **options)

    distributed.all_reduce = all_reduce
    try:
        yield sent
    finally:
        distributed.all_reduce = original


def _bytes(tensors: Iterator[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def transport(_rank: int, _count: int, rounds: int) -> dict[str, float]:
    """Seconds of an all-reduce of one number and of many, with nothing else to do."""
    messages = {"small": torch.zeros(1), "large": torch.zeros(LARGE_BYTES // 4)}

    def run(size: str) -> None:
        distributed.all_reduce(messages[size])

    return timed(run, tuple(messages), rounds, turn=50)


def timed(run: Callable[[str], None], kinds: Sequence[str], rounds: int, turn: int = TURN_BATCHES) -> dict[str, float]:
    """Median seconds of each kind of run, over rounds in which they take turns in an order drawn anew."""
    order = random.Random(0)
    for kind in kinds:
        for _ in range(WARMUP_BATCHES):
            run(kind)
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in order.sample(list(kinds), len(kinds)):
            distributed.barrier()
            start = perf_counter()
            for _ in range(turn):
                run(kind)
            distributed.barrier()
            found[kind].append((perf_counter() - start) / turn)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def on_ranks(job: Callable[..., Any], count: int, *args: Any) -> Any:
    """What rank 0 of `count` processes finds."""
    print(f"measuring {job.__name__} in {count} processes ...", file=sys.stderr)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(_entry, (job, count, port, queue, args), nprocs=count)
    return queue.get()


def _entry(rank: int, job: Callable[..., Any], count: int, port: int, queue: Any, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    found = job(rank, count, *args)
    if rank == 0:
        queue.put(found)
    distributed.destroy_process_group()


def shares(batch: int) -> list[int]:
    """Images for which one rank's work is measured: from the whole batch to the share of the most ranks."""
    return [batch, batch // 4, batch // 16, batch // max(BEYOND_RANKS)]


def measure(rounds: int, batch: int, cores: int) -> dict[str, Any]:
    """Everything that is measured."""
    return {
        "pipeline": on_ranks(pipeline, 2, rounds, batch),
        "work": on_ranks(work, cores, rounds, shares(batch)),
        "transport": {ranks: on_ranks(transport, ranks, rounds) for ranks in RANKS},
        "data_parallel": {ranks: on_ranks(data_parallel, ranks, rounds, batch) for ranks in RANKS},
    }


class Model:
    """`benchmarks.scaling` with what was measured."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._work = {kind: {images: part[kind] for images, part in found["work"].items()} for kind in KINDS}
        self._traffic = {kind: Traffic(**found["data_parallel"][2]["traffic"][kind]) for kind in KINDS}
        self.transport = {
            ranks: Transport.measured(ranks, part["small"], part["large"], LARGE_BYTES)
            for ranks, part in found["transport"].items()
        }

    def here(self, kind: str, images: float, ranks: int, cores: int) -> float:
        """Seconds of a batch on this machine."""
        return batch_seconds(self._work[kind], images, ranks, cores, self._traffic[kind], self.transport[ranks])

    def beyond(self, images: float, ranks: int, gigabits: int) -> dict[str, float]:
        """Seconds of each kind of batch with a core for each rank, and ADA-GP's speed-up with as many GP as BP."""
        wire = self.transport[2].behind(gigabits * 1e9 / 8)
        seconds = {
            kind: batch_seconds(self._work[kind], images, ranks, ranks, self._traffic[kind], wire) for kind in KINDS
        }
        return {**seconds, "speed_up": speed_up(seconds["plain"], seconds["BP"], seconds["GP"])}


def checked(found: dict[str, Any], model: Model, batch: int, cores: int) -> list[dict[str, Any]]:
    """Measured beside modelled seconds, for every number of ranks and kind of batch."""
    rows = []
    for ranks, part in found["data_parallel"].items():
        for kind in KINDS:
            measured, modelled = part["seconds"][kind], model.here(kind, batch / ranks, ranks, cores)
            row = {"ranks": ranks, "kind": kind, "measured_seconds": measured, "modelled_seconds": modelled}
            rows.append({**row, "error": modelled / measured - 1})
    return rows


def computed(model: Model, images_of: Callable[[int], float]) -> list[dict[str, Any]]:
    """Beyond what can be measured: for each number of ranks and network."""
    return [
        {"ranks": ranks, "gigabits": gigabits, **model.beyond(images_of(ranks), ranks, gigabits)}
        for ranks in BEYOND_RANKS
        for gigabits in GIGABITS
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128, help="at least 64, a multiple of 4")
    parser.add_argument("--rounds", type=int, default=6, help="interleaved repetitions; the median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    batch = options.batch_size
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if batch < max(BEYOND_RANKS) or batch % max(RANKS) or options.rounds < 1:
        parser.error(
            f"--batch-size must be a multiple of {max(RANKS)} from {max(BEYOND_RANKS)} on, --rounds at least 1"
        )
    found = measure(options.rounds, batch, cores)
    model = Model(found)
    here = describe(torch.device("cpu"))
    found |= {
        "machine": f"{here['processor']}, {cores} cores, one thread a process, batch {batch}",
        "checked": checked(found, model, batch, cores),
        "shared_batch": computed(model, lambda ranks: batch / ranks),
        "growing_batch": computed(model, lambda ranks: batch / 4),
    }
    print(json.dumps(found, indent=2) if options.json else tables(found, model, batch))
    return 0


def tables(found: dict[str, Any], model: Model, batch: int) -> str:
    """Everything as Markdown."""
    bp, gp = (found["pipeline"]["seconds"][phase] for phase in ("BP", "GP"))
    lines = [found["machine"], "", "| VGG-13 in two stages, GPipe | seconds per batch | BP / this |", "|---|---|---|"]
    lines += [f"| BP | {bp:.3f} | 1.00 |", f"| GP | {gp:.3f} | {bp / gp:.2f} |", ""]
    lines += ["| ResNet-20 in one rank, images | plain BP ms | BP ms | GP ms |", "|---|---|---|---|"]
    lines += [
        f"| {images} | " + " | ".join(f"{1e3 * part[kind]:.1f}" for kind in KINDS) + " |"
        for images, part in found["work"].items()
    ]
    lines += ["", "| all-reduce, ranks | one number ms | 1 MiB ms | step ms | MB/s |", "|---|---|---|---|---|"]
    for ranks, part in found["transport"].items():
        cost = model.transport[ranks]
        lines.append(
            f"| {ranks} | {1e3 * part['small']:.3f} | {1e3 * part['large']:.3f} | {1e3 * cost.step_seconds:.3f} "
            f"| {cost.bytes_per_second / 1e6:.0f} |"
        )
    lines += ["", "| batch of 2 ranks | all-reduces | broadcasts | KB a rank sends |", "|---|---|---|---|"]
    for kind, part in found["data_parallel"][2]["traffic"].items():
        lines.append(
            f"| {kind} | {part['reductions']:.1f} | {part['broadcasts']:.1f} | {part['sent_bytes'] / 1e3:.1f} |"
        )
    lines += ["", "| ranks | batch | measured ms | modelled ms | error |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['ranks']} | {row['kind']} | {1e3 * row['measured_seconds']:.1f} | {1e3 * row['modelled_seconds']:.1f} "
        f"| {row['error']:+.0%} |"
        for row in found["checked"]
    ]
    lines += ["", f"A batch of {batch} images shared by all ranks, computed:", "", *_grid(found["shared_batch"])]
    lines += ["", f"{batch // 4} images on each rank, computed:", "", *_grid(found["growing_batch"])]
    return "\n".join(lines)


def _grid(rows: list[dict[str, Any]]) -> list[str]:
    heads = [f"plain BP ms at {speed} Gbit/s | GP ms | speed-up 1:1" for speed in GIGABITS]
    lines = [f"| ranks | {' | '.join(heads)} |", "|---" * (1 + 3 * len(GIGABITS)) + "|"]
    for ranks in BEYOND_RANKS:
        cells = [
            f"{1e3 * row['plain']:.0f} | {1e3 * row['GP']:.0f} | {row['speed_up']:.2f}"
            for row in rows
            if row["ranks"] == ranks
        ]
        lines.append(f"| {ranks} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
