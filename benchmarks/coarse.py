"""Settles how coarse batches are run: `python -m benchmarks.coarse`.

A ResNet-8 on CIFAR-10 (12,800 images, 4,000 for the test), batch 128, SGD with Nesterov momentum 0.9, weight decay
5e-4, a tenth of warm-up, cosine decay over the whole run. Every case but `growing` costs as many pixels as half size
for 60 % of 8 epochs. `benchmarks/results/coarse.json` holds the finished runs, so that the study continues where it was
stopped. `--table` prints what is there. Data: the folder named by ADAGP_DATA.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import cos, pi
from statistics import mean
from time import process_time

import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, coarse, data, schedules
from adagp.models.resnet_cifar import SmallResNet
from adagp.schedules import Schedule
from benchmarks.runs import Runs
from benchmarks.study import RESULTS

TRAIN, TEST, BATCH = 12_800, 4_000, 128
WORK = 4.4
"""Of every case, in epochs of full images."""
Level = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        question: What it answers.
        lr: The learning rate at its peak.
        levels: Scales and their shares of the images.
        order: `levels`; `turns`: a coarse batch for each full one; or `growing`, with the scales of the levels.
        last: Of `turns`, the share of the steps at the end that runs at full size.
        work: In epochs of full images; `growing` may take another.
        statistics: Whether coarse batches update batch norm's running statistics.
        growth: The first level's batches have this many times the images.
        coarse_lr: The learning rate of coarse batches is multiplied by this.
        predictor: Where set, GP batches take turns with BP batches once the images are full, and the label-aware
            predictor learns from `full` batches or from `all`.
        seed: Of the weights and the order.
    """

    question: str
    lr: float
    levels: tuple[Level, ...]
    order: str = "levels"
    last: float = 0.1
    work: float = WORK
    statistics: bool = True
    growth: int = 1
    coarse_lr: float = 1.0
    predictor: str = ""
    seed: int = 0

    @property
    def epochs(self) -> float:
        """The length of the run, which follows from its work."""
        work = sum(share * scale**2 for scale, share in self.levels)
        if self.order == "turns":
            work = self.last + (1 - self.last) * (1 + self.levels[0][0] ** 2) / 2
        return round(self.work / work, 2)


PLAIN = ((1.0, 1.0),)
HALF = ((0.5, 0.6), (1.0, 0.4))


def first_answers() -> Iterator[Case]:
    """One run for each question, the most urgent first, and what it is compared with."""
    yield Case("reference", 0.8, HALF)
    yield Case("statistics kept", 0.8, HALF, statistics=False)
    yield Case("learning rate of coarse batches", 0.8, HALF, coarse_lr=2)
    yield Case("larger batches", 0.8, HALF, growth=2)
    yield Case("share", 0.8, ((0.5, 0.75), (1.0, 0.25)))
    yield Case("levels", 0.8, ((0.75, 0.6), (1.0, 0.4)))
    for learns in ("all", "full"):
        yield Case("predictor", 0.4, ((0.5, 0.3), (1.0, 0.7)), predictor=learns)
    yield Case("plain", 0.8, PLAIN)
    yield Case("growing", 0.8, HALF, "growing")
    yield Case("share", 0.8, ((0.5, 0.9), (1.0, 0.1)))
    yield Case("larger batches", 0.8, HALF, growth=2, coarse_lr=2)
    yield Case("levels", 0.8, ((0.625, 0.6), (1.0, 0.4)))
    yield Case("levels", 0.8, ((0.5, 0.4), (0.75, 0.3), (1.0, 0.3)))
    yield Case("learning rate of coarse batches", 0.8, HALF, coarse_lr=0.5)
    yield Case("turns", 0.8, HALF, "turns")
    yield Case("turns, to the end", 0.8, HALF, "turns", last=0.0)
    yield Case("turns, to the end, statistics kept", 0.8, HALF, "turns", last=0.0, statistics=False)
    yield Case("reference", 0.4, HALF)
    yield Case("plain", 0.4, PLAIN)
    yield Case("share", 0.8, ((0.5, 0.4), (1.0, 0.6)))


def cases() -> Iterator[Case]:
    """The study, in order of weight: each question before a second seed of any."""
    yield from first_answers()
    more = (
        Case("levels", 0.8, ((0.375, 0.3), (0.5, 0.3), (1.0, 0.4))),
        Case("larger batches", 0.8, HALF, growth=4, coarse_lr=2),
    )
    for seed in (1, 2):
        # Running statistics do not reach the weights, and full batches at the end replace them: one run shows it.
        again = (case for case in first_answers() if case.question != "statistics kept")
        yield from (replace(case, seed=seed) for case in again)
        yield from (replace(case, seed=seed - 1) for case in more)


def batch_sizes(case: Case) -> list[int]:
    """The number of images in every batch: more in the first level if asked for."""
    total, sizes = round(case.epochs * TRAIN), []
    first = case.levels[0][1] * total if case.growth > 1 else 0
    while (done := sum(sizes)) < total:
        sizes.append(BATCH * (case.growth if done < first else 1))
    return sizes


def scales_of(case: Case, sizes: Sequence[int]) -> list[float]:
    """The scale of every batch; `growing` decides for itself."""
    if case.order == "turns":
        last = round((1 - case.last) * len(sizes))
        return [case.levels[0][0] if step < last and step % 2 else 1.0 for step in range(len(sizes))]
    found, done, total = [], 0, sum(sizes)
    before = [sum(share for _, share in case.levels[:level]) * total for level in range(len(case.levels))]
    for size in sizes:
        level = sum(done > start - 1e-6 * total for start in before) - 1
        found.append(case.levels[level][0])
        done += size
    return found


def schedule_of(case: Case, scales: Sequence[float]) -> Schedule:
    """The case's schedule."""
    if case.order == "growing":
        return schedules.growing(len(scales), sorted({scale for scale, _ in case.levels}))
    full = [step for step, scale in enumerate(scales) if scale == 1]
    # Told that a small batch is full, the predictor learns from it, and batch norms' statistics follow it.
    tells_scale = case.predictor != "all" and not (case.order == "turns" and case.statistics)

    def plan(step: int) -> Plan:
        if case.predictor and scales[step] == 1 and (step - full[0]) % 2:
            return Plan(Phase.GP, "predicted")
        return Plan(Phase.BP, "backprop", scale=scales[step] if tells_scale else 1.0)

    return schedules.from_function(plan, ["backprop", "predicted"] if case.predictor else ["backprop"])


def train(case: Case, images: Tensor, labels: Tensor, test: tuple[Tensor, Tensor]) -> dict[str, object]:
    """Accuracy in per cent, CPU seconds and what else the case shows."""
    torch.manual_seed(case.seed)
    model = SmallResNet(1, num_classes=10, in_channels=3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    augment = data.Augment(padding=4, flip=True)
    generator = torch.Generator().manual_seed(case.seed)
    sizes = batch_sizes(case)
    scales = scales_of(case, sizes)
    schedule = schedule_of(case, scales)
    gp = AdaGP(model, optimizer, schedule, "label-aware" if case.predictor else None)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    start, done, order = process_time(), 0, torch.empty(0, dtype=torch.long)
    total, work, losses, cosines = sum(sizes), 0.0, [], []
    for step, size in enumerate(sizes):
        scale = schedule(step).scale if case.order == "growing" else scales[step]
        progress = done / total
        factor = progress / 0.1 if progress < 0.1 else (1 + cos(pi * (progress - 0.1) / 0.9)) / 2
        for group in optimizer.param_groups:
            group["lr"] = case.lr * factor * (case.coarse_lr if scale < 1 else 1)
        while len(order) < size:
            order = torch.cat([order, torch.randperm(TRAIN, generator=generator)])
        picked, order = order[:size], order[size:]
        for norm in norms:
            norm.momentum = 0.0 if scale < 1 and not case.statistics else 0.1
        x, y = augment(images[picked], generator).contiguous(memory_format=torch.channels_last), labels[picked]
        # The probes of `growing` ask for scales of their own.
        loss = gp.step(
            lambda asked, x=x, y=y, scale=scale: nn.functional.cross_entropy(  # type: ignore[misc]
                model(coarse.images(x, asked if case.order == "growing" else scale)), y
            )
        )
        losses.append(float(loss))
        done += size
        work += size / TRAIN * (scale**2 + sum(probed**2 for probed in schedule.probe_scales(step)))
        if case.predictor and gp.quality() and step % 10 == 9:
            cosines.append((step, mean(layer.cosine for layer in gp.quality().values())))
    seconds = process_time() - start
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(1) == y).sum()) for x, y in zip(test[0].split(500), test[1].split(500), strict=True)
        )
    return {
        "accuracy": 100 * right / TEST,
        "seconds": seconds,
        "epochs_of_work": work,
        "loss": mean(losses[-20:]),
        **({"explained": schedule.explain()} if schedule.explain() else {}),
        **({"cosines": cosines} if cosines else {}),
    }


def load() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Training and test images, normalised."""
    found = data.load("cifar10")
    mean, std = torch.tensor(found.mean).view(1, -1, 1, 1), torch.tensor(found.std).view(1, -1, 1, 1)

    def ready(split: object, count: int) -> tuple[Tensor, Tensor]:
        pixels = split.images[:count].float() / 255  # type: ignore[attr-defined]
        return (pixels - mean) / std, split.labels[:count]  # type: ignore[attr-defined]

    images, labels = ready(found.train, TRAIN)
    return images, labels, ready(found.test, TEST)


def table(runs: Runs) -> None:
    """Print the finished runs: accuracy in per cent, seed by seed, and work in epochs of full images."""
    seeds: dict[Case, list[str]] = {}
    for case in cases():
        if (found := runs.get(case)) is not None:
            seeds.setdefault(replace(case, seed=0), []).append(
                f"{case.seed}: {found['accuracy']:.1f} ({found['epochs_of_work']:.2f} epochs, {found['seconds']:.0f} s)"
            )
    for case, lines in seeds.items():
        what = f"{case.question}, lr {case.lr:g}, {case.levels}"
        what += f", x{case.growth} images" if case.growth > 1 else ""
        what += f", x{case.coarse_lr:g} lr" if case.coarse_lr != 1 else ""
        print(f"{what}{f', learns from {case.predictor}' if case.predictor else ''}:  {'  '.join(lines)}")


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print what is there")
    options = parser.parse_args()
    runs = Runs(RESULTS / "coarse.json")
    if options.table:
        table(runs)
        return
    torch.set_num_threads(1)
    images, labels, test = load()
    for case in cases():
        if runs.get(case) is None:
            print(case, flush=True)
            runs.add(case, train(case, images, labels, test))


if __name__ == "__main__":
    main()
