"""Pipelines on this machine, and what a batch of them is worth: `python -m benchmarks.pipelines RUNS.json`.

`--seconds` needs two idle cores. Two processes of one thread each hold ResNet-20, then VGG-13, and run batches of 128
images of 32 x 32 by several ways in turn: torch's exact schedules (GPipe, 1F1B and zero bubble with one stage a rank;
interleaved 1F1B, interleaved zero bubble and ZBV with two), GP batches, and local losses over one and four micro-
batches. Each way has the cut that suits it. Counted are median seconds per batch over turns of five batches, in which a
pipeline fills and empties once.

`--accuracy` needs one core. It trains in one process, which gives the same weights (tests/distributed): backpropagation
and local losses over four micro-batches, local losses over one, on 12,800 images, tested on 4,000, with SGD, Nesterov
momentum 0.9, weight decay 5e-4, a tenth of warm-up, cosine decay to the end of each run. Data: ADAGP_DATA.

RUNS.json holds what is finished, so that both continue where they were stopped. `--table` prints it: the seconds, the
accuracies, and the seconds to the accuracy that backpropagation has after its shortest run.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import cos, pi
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.nn.functional import cross_entropy

from adagp import AdaGP, data, models, schedules
from adagp.distributed import Pipeline, stage_of
from adagp.sources import Local
from adagp.training.environment import describe
from benchmarks.coarse import BATCH, TRAIN, load
from benchmarks.distributed import Phases, on_ranks
from benchmarks.runs import Runs

NETWORKS = ("resnet20", "vgg13")
MICRO_BATCHES = 4
TURN = 5
EPOCHS = (4, 6, 8)
SEEDS = (0, 1, 2)
RATES = {"resnet20": 0.8, "vgg13": 0.1}
CUTS = {
    "resnet8": {"narrow": (3,)},
    "resnet20": {"exact": (5,), "local": (4,), "narrow": (5,), "four": (3, 5, 7)},
    "vgg13": {"exact": (5,), "local": (4,), "narrow": (4,), "four": (2, 4, 7)},
}
"""The units after which a network is cut. With equal CPU time on both sides in exact ways (VGG-13 0.51 and 0.49 of a
batch, ResNet-20 0.55 and 0.45); one unit earlier in local ones, whose first stage has a head; where the fewest numbers
cross, for slow links."""


def units(network: str) -> list[nn.Module]:
    """A network as modules that follow each other: blocks, or convolutions with what belongs to them."""
    model = models.build(network, num_classes=10)
    if network.startswith("resnet"):
        return [model.stem, *(block for stage in model.stages for block in stage), model.head]  # type: ignore[list-item, union-attr]
    found: list[list[nn.Module]] = []
    for module in model.features:  # type: ignore[union-attr]
        if isinstance(module, nn.Conv2d):
            found.append([])
        found[-1].append(module)
    return [*(nn.Sequential(*unit) for unit in found), model.head]  # type: ignore[list-item]


def parts(network: str, way: str) -> list[nn.Module]:
    """A network cut as a way wants it, always with the same first weights."""
    modules = units(network)
    places = (0, *CUTS[network][way], len(modules))
    return [nn.Sequential(*modules[start:end]) for start, end in pairwise(places)]


# --- seconds: two processes


class Ways:
    """Every way to run a batch through two ranks, each with a network of its own."""

    def __init__(self, rank: int, network: str, images: Tensor, labels: Tensor, cut: str | None = None) -> None:
        """`images` are given to the first stage, wherever it is; `cut` is one of `CUTS` for all two stages."""
        self._cut, self._rank, self._network, self._images, self._labels = cut, rank, network, images, labels

    def build(self, names: Sequence[str]) -> dict[str, Callable[[], None]]:
        """What runs one batch, by name of the way."""
        return {name: self._known[name]() for name in names}

    @property
    def _known(self) -> dict[str, Callable[[], Callable[[], None]]]:
        def split(stage: PipelineStage, *rest: Any) -> ScheduleInterleavedZeroBubble:
            return ScheduleInterleavedZeroBubble([stage], *rest)

        one, both, there_and_back = self._rank, (self._rank, self._rank + 2), (self._rank, 3 - self._rank)
        return {
            "GPipe": lambda: self._exact(ScheduleGPipe, one),
            "1F1B": lambda: self._exact(Schedule1F1B, one),
            "zero bubble": lambda: self._exact(split, one),
            "interleaved 1F1B, 4 stages": lambda: self._several(ScheduleInterleaved1F1B, both),
            "interleaved zero bubble, 4 stages": lambda: self._several(ScheduleInterleavedZeroBubble, both),
            "ZBV zero bubble, 4 stages": lambda: self._several(ScheduleZBVZeroBubble, there_and_back),
            "GP": self._predicted,
            "local, 4 micro-batches": lambda: self._local(MICRO_BATCHES),
            "local, 1 micro-batch": lambda: self._local(1),
        }

    def _stage(self, way: str, place: int, count: int = MICRO_BATCHES) -> PipelineStage:
        torch.manual_seed(0)
        example = torch.empty(len(self._images) // count, *self._images.shape[1:])
        return stage_of(parts(self._network, way), place, example, torch.device("cpu"))

    def _given(self, stages: Sequence[PipelineStage]) -> tuple[list[Tensor], Tensor | None]:
        first, last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
        return [self._images] if first else [], self._labels if last else None

    def _exact(self, kind: Callable[..., Any], place: int) -> Callable[[], None]:
        stage = self._stage(self._cut or "exact", place)
        return self._plain(kind(stage, MICRO_BATCHES, cross_entropy), [stage])

    def _several(self, kind: Callable[..., Any], places: Sequence[int]) -> Callable[[], None]:
        stages = [self._stage("four", place) for place in places]
        return self._plain(kind(stages, MICRO_BATCHES, cross_entropy), stages)

    def _plain(self, schedule: Any, stages: Sequence[PipelineStage]) -> Callable[[], None]:
        """Torch's schedule by itself."""
        optimizer = sgd([parameter for stage in stages for parameter in stage.submod.parameters()])
        inputs, target = self._given(stages)

        def run() -> None:
            schedule.step(*inputs, target=target, return_outputs=False)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return run

    def _predicted(self) -> Callable[[], None]:
        """GP batches, after BP batches that the predictor has learned from."""
        stage, phases = self._stage(self._cut or "exact", self._rank), Phases()
        gp = AdaGP(stage.submod, sgd(stage.submod.parameters()), phases.schedule)
        pipeline = Pipeline(ScheduleGPipe(stage, MICRO_BATCHES, cross_entropy), gp)
        inputs, target = self._given([stage])
        for _ in range(2):
            pipeline.step(*inputs, target=target)
        phases.now = "GP"
        return lambda: (pipeline.step(*inputs, target=target), None)[1]

    def _local(self, count: int) -> Callable[[], None]:
        stage = self._stage(self._cut or "local", self._rank, count)
        gp = AdaGP(stage.submod, sgd(stage.submod.parameters()), schedules.always_local(), None)
        pipeline = Pipeline(ScheduleGPipe(stage, count, cross_entropy), gp, gradients="local")
        inputs, _ = self._given([stage])
        return lambda: (pipeline.step(*inputs, target=self._labels), None)[1]


def sgd(parameters: Any, lr: float = 1e-3) -> torch.optim.Optimizer:
    """The optimizer of all trainings."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)


def take_turns(rank: int, _count: int, network: str, batch: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per batch of every way, one number a round."""
    torch.manual_seed(1)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    ways = Ways(rank, network, images, labels).build((*EXACT, "GP", *LOCAL))
    found: dict[str, list[float]] = {way: [] for way in ways}
    order = random.Random(0)
    for round_ in range(rounds + 1):
        for way in order.sample(list(ways), len(ways)):
            distributed.barrier()
            start = perf_counter()
            for _ in range(TURN):
                ways[way]()
            distributed.barrier()  # the last stage has ended too
            if round_:  # the first is a warm-up
                found[way].append((perf_counter() - start) / TURN)
    return found


@dataclass(frozen=True)
class Seconds:
    """One measurement of all ways."""

    network: str
    batch: int = BATCH


# --- accuracy: one process


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        network: The network.
        way: `exact` or `local`.
        micro_batches: Of a batch; batch norm sees one at a time.
        epochs: After which the learning rate is 0.
        seed: Of weights, heads and order.
        images: Of the training data.
    """

    network: str
    way: str
    micro_batches: int
    epochs: int
    seed: int
    images: int = TRAIN


def trainings() -> Iterator[Training]:
    """The study, in order of weight."""
    ways = (("exact", MICRO_BATCHES), ("local", MICRO_BATCHES)), (("local", 1),)
    for network, some, epochs, seed in product(NETWORKS, ways, EPOCHS, SEEDS):
        for way, count in some:
            yield Training(network, way, count, epochs, seed)


def train(case: Training, images: Tensor, labels: Tensor, test: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """The accuracy in per cent."""
    torch.manual_seed(case.seed)
    model = nn.Sequential(*parts(case.network, case.way))
    count, rate = case.micro_batches, RATES[case.network]
    if case.way == "exact":
        gp = AdaGP(model, sgd(model.parameters(), rate), schedules.always_backprop(), None)
    else:
        local = Local(["0"], loss=lambda output, target: cross_entropy(output, target) / count, seed=case.seed)
        gp = AdaGP(model, sgd(model.parameters(), rate), schedules.always_local(), None, sources={"local": local})
    augment, generator = data.Augment(padding=4, flip=True), torch.Generator().manual_seed(case.seed)
    steps = case.epochs * case.images // BATCH
    start, losses, order = process_time(), [], torch.empty(0, dtype=torch.long)
    for index in range(steps):
        progress = index / steps
        gp.optimizer.param_groups[0]["lr"] = rate * (
            progress / 0.1 if progress < 0.1 else (1 + cos(pi * (progress - 0.1) / 0.9)) / 2
        )
        if len(order) < BATCH:
            order = torch.randperm(case.images, generator=generator)
        picked, order = order[:BATCH], order[BATCH:]
        losses.append(step(gp, augment(images[picked], generator), labels[picked], count, case.way == "local"))
    seconds = process_time() - start
    model.eval()
    with torch.no_grad():
        pairs = zip(test[0].split(500), test[1].split(500), strict=True)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)
    return {"accuracy": 100 * right / len(test[1]), "loss": sum(losses[-20:]) / 20, "cpu_seconds": seconds}


def step(gp: AdaGP, images: Tensor, labels: Tensor, count: int, is_local: bool) -> float:
    """One batch, as the stages of a pipeline compute it."""
    total = 0.0
    with gp.batch() as batch:
        for x, y in zip(images.chunk(count), labels.chunk(count), strict=True):
            if is_local:
                batch.expect_local(y)
            loss = cross_entropy(gp.model(x), y) / count
            batch.backward(loss)
            total += float(loss.detach())
    gp.optimizer.step()
    gp.optimizer.zero_grad(set_to_none=True)
    return total


# --- tables


EXACT = (
    "GPipe",
    "1F1B",
    "zero bubble",
    "interleaved 1F1B, 4 stages",
    "interleaved zero bubble, 4 stages",
    "ZBV zero bubble, 4 stages",
)
LOCAL = ("local, 4 micro-batches", "local, 1 micro-batch")


def table(runs: Runs) -> str:
    """What is there, as Markdown."""
    lines: list[str] = []
    for network in NETWORKS:
        found = runs.get(Seconds(network))
        seconds = {way: statistics.median(taken) for way, taken in found["seconds"].items()} if found else {}
        best = min((way for way in EXACT if way in seconds), key=seconds.__getitem__, default="")
        if found:
            lines += [
                f"{network}: {found['machine']}",
                "",
                f"| way | seconds a batch | {best} / this |",
                "|---|---|---|",
            ]
            lines += [f"| {way} | {value:.3f} | {seconds[best] / value:.2f} |" for way, value in seconds.items()] + [""]
        lines += _accuracies(network, runs, seconds, best)
    return "\n".join(lines)


def _accuracies(network: str, runs: Runs, seconds: dict[str, float], best: str) -> list[str]:
    """Accuracy by epochs, and the seconds to what backpropagation has after its shortest run."""
    by_way: dict[str, dict[int, list[float]]] = {}
    for case in trainings():
        if case.network == network and (run := runs.get(case)) is not None:
            name = (
                "exact"
                if case.way == "exact"
                else f"local, {case.micro_batches} micro-batch{'es' * (case.micro_batches > 1)}"
            )
            by_way.setdefault(name, {}).setdefault(case.epochs, []).append(run["accuracy"])
    if not by_way:
        return []
    epochs = sorted({each for points in by_way.values() for each in points})
    lines = [
        f"| {network}: way | {' | '.join(f'{each} epochs' for each in epochs)} |",
        "|---" * (1 + len(epochs)) + "|",
    ]
    for way, points in by_way.items():
        cells = [", ".join(f"{one:.1f}" for one in points.get(each, [])) or "-" for each in epochs]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    lines.append("")
    if "exact" not in by_way or not seconds:
        return lines
    means = {way: {each: statistics.fmean(points[each]) for each in sorted(points)} for way, points in by_way.items()}
    shortest = min(means["exact"])
    target = means["exact"][shortest]
    exact_seconds = shortest * TRAIN / BATCH * seconds[best]
    lines.append(
        f"To {target:.1f} %, which backpropagation has after {shortest} epochs, in {exact_seconds:.0f} s under {best}:"
    )
    for way in means:
        needed = None if way == "exact" else epochs_to(target, means[way])
        if needed is not None:
            taken = needed * TRAIN / BATCH * seconds[way]
            lines.append(f"{way}: {needed:.2f} epochs, {taken:.0f} s, {exact_seconds / taken:.2f} x")
        elif way != "exact":
            lines.append(f"{way}: not within {max(means[way])} epochs")
    return [*lines, ""]


def epochs_to(target: float, points: dict[int, float]) -> float | None:
    """The length of the run that reaches an accuracy, between the lengths that were run; None if none does."""
    if points[min(points)] >= target:
        return min(points)
    for (short, low), (long, high) in pairwise(points.items()):
        if low < target <= high:
            return short + (long - short) * (target - low) / (high - low)
    return None


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seconds", action="store_true", help="measure seconds per batch; on two idle cores")
    parser.add_argument("--accuracy", action="store_true", help="train; in one process, by one thread")
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repetitions of --seconds")
    parser.add_argument("--batch-size", type=int, default=BATCH, help="of --seconds; the table shows 128")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--trial", action="store_true", help="of --accuracy: three short runs, printed and not kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(options.runs)
    if options.seconds:
        for network in options.networks:
            case = Seconds(network, options.batch_size)
            if runs.get(case) is None:
                found = on_ranks(take_turns, 2, network, options.batch_size, options.rounds)
                machine = f"{describe(torch.device('cpu'))['processor']}, 2 processes of one thread"
                runs.add(case, {"seconds": found, "machine": f"{machine}, batch {options.batch_size}"})
    if options.accuracy:
        images, labels, (pixels, classes) = load()
        missing = [one for one in trainings() if one.network in options.networks and runs.get(one) is None]
        if options.trial:
            for one in missing[:3]:
                small = replace(one, epochs=1, images=4 * BATCH)
                print(small, train(small, images, labels, (pixels[:500], classes[:500])))
            return
        for one in missing:
            runs.add(one, train(one, images, labels, (pixels, classes)))
    if options.table:
        print(table(runs))


if __name__ == "__main__":
    main()
