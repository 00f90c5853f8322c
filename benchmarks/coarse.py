"""Settles how coarse batches are run: `python -m benchmarks.coarse`.

A ResNet-8 on CIFAR-10 (12,800 images, 4,000 for the test), batch 128, SGD with Nesterov momentum 0.9, weight decay
5e-4, a tenth of warm-up, cosine decay over the whole run. Each line of `benchmarks/results/coarse.jsonl` is one
finished run, so that the study continues where it was stopped; delete a line to have it again. `--table` prints what is
there. Data: the folder named by ADAGP_DATA.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from math import cos, pi
from pathlib import Path
from time import process_time

import torch
from torch import Tensor, nn

from adagp import AdaGP, coarse, data, schedules
from adagp.models.resnet_cifar import SmallResNet
from adagp.schedules import Schedule

TRAIN, TEST, BATCH = 12_800, 4_000, 128
RESULTS = Path(__file__).parent / "results" / "coarse.jsonl"


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        name: The question it belongs to.
        levels: Scales and their shares of the steps; empty for the ladder's 1:1.
        last: In 1:1, the share of the steps at the end that runs at full size.
        epochs: The length of the run.
        lr: The learning rate at its peak.
        statistics: Whether coarse batches update batch norm's running statistics.
        growth: The batch is this many times larger at half the size, at equal epochs.
        seed: Of the weights and the order.
    """

    name: str
    levels: tuple[tuple[float, float], ...]
    epochs: float
    lr: float
    last: float = 0.1
    statistics: bool = True
    growth: int = 1
    seed: int = 0


PLAIN = ((1.0, 1.0),)
HALF = ((0.5, 0.6), (1.0, 0.4))


def cases() -> Iterator[Case]:
    """The study, in order of weight."""
    for statistics in (True, False):
        yield Case("1:1 to the end", (), 10, 0.4, last=0.0, statistics=statistics)
    for seed, lr in product((0, 1), (0.8, 0.4)):
        yield Case("plain", PLAIN, 8, lr, seed=seed)
        yield Case("half 60 %", HALF, 11, lr, seed=seed)
        yield Case("half 60 %, statistics kept", HALF, 11, lr, statistics=False, seed=seed)
        yield Case("1:1", (), 10, lr, seed=seed)
        yield Case("1:1, statistics kept", (), 10, lr, statistics=False, seed=seed)
    for levels in (
        ((0.5, 0.4), (0.75, 0.3), (1.0, 0.3)),
        ((0.75, 0.6), (1.0, 0.4)),
        ((0.625, 0.6), (1.0, 0.4)),
        ((0.5, 0.75), (1.0, 0.25)),
        ((0.5, 0.9), (1.0, 0.1)),
        ((0.375, 0.3), (0.5, 0.3), (1.0, 0.4)),
    ):
        # As long as eight plain epochs take, by the number of pixels.
        work = sum(share * scale**2 for scale, share in levels)
        for lr in (0.4, 0.8):
            yield Case("levels", levels, round(8 * 0.75 / work, 2), lr)
    for growth, lr in product((2, 4), (0.4, 0.8, 1.6)):
        yield Case("larger batches at half the size", HALF, 11, lr, growth=growth)


def schedule_of(case: Case, steps: int) -> Schedule:
    """The case's schedule: levels, or the ladder's 1:1 with the last steps at full size."""
    if case.levels:
        return schedules.progressive(steps, case.levels)
    one_to_one, last = schedules.fixed(1, 1, source="coarse"), round((1 - case.last) * steps)
    return schedules.from_function(lambda step: one_to_one(step) if step < last else schedules.plan.BACKPROP)


def train(case: Case, images: Tensor, labels: Tensor, test: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Accuracy in per cent and CPU seconds of one case."""
    torch.manual_seed(case.seed)
    model = SmallResNet(1, num_classes=10, in_channels=3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    augment = data.Augment(padding=4, flip=True)
    generator = torch.Generator().manual_seed(case.seed)
    total = round(case.epochs * TRAIN)
    batches = list(_batches(case, total))
    schedule = schedule_of(case, len(batches))
    gp = AdaGP(model, optimizer, schedule, None)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    start, done, order, losses = process_time(), 0, torch.empty(0, dtype=torch.long), []
    for step, size in enumerate(batches):
        progress = done / total
        factor = progress / 0.1 if progress < 0.1 else (1 + cos(pi * (progress - 0.1) / 0.9)) / 2
        for group in optimizer.param_groups:
            group["lr"] = case.lr * factor
        while len(order) < size:
            order = torch.cat([order, torch.randperm(TRAIN, generator=generator)])
        picked, order = order[:size], order[size:]
        scale = schedule(step).scale
        for norm in norms:
            norm.momentum = 0.0 if scale < 1 and not case.statistics else 0.1
        x, y = augment(images[picked], generator).contiguous(memory_format=torch.channels_last), labels[picked]
        loss = gp.step(
            lambda scale, x=x, y=y: nn.functional.cross_entropy(model(coarse.images(x, scale)), y)  # type: ignore[misc]
        )
        losses.append(float(loss))
        done += size
    seconds = process_time() - start
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(1) == y).sum()) for x, y in zip(test[0].split(500), test[1].split(500), strict=True)
        )
    work = sum(size * schedule(step).scale ** 2 for step, size in enumerate(batches)) / TRAIN
    return {"accuracy": 100 * right / TEST, "seconds": seconds, "epochs_of_work": work, "loss": sum(losses[-20:]) / 20}


def _batches(case: Case, total: int) -> Iterator[int]:
    """The sizes of all batches: larger at the first level if asked for."""
    first = case.levels[0] if case.growth > 1 else (1.0, 0.0)
    done = 0
    while done < total:
        size = BATCH * (case.growth if done < first[1] * total else 1)
        yield size
        done += size


def load() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Training and test images, normalised."""
    found = data.load("cifar10")
    mean, std = torch.tensor(found.mean).view(1, -1, 1, 1), torch.tensor(found.std).view(1, -1, 1, 1)

    def ready(split: object, count: int) -> tuple[Tensor, Tensor]:
        pixels = split.images[:count].float() / 255  # type: ignore[attr-defined]
        return (pixels - mean) / std, split.labels[:count]  # type: ignore[attr-defined]

    images, labels = ready(found.train, TRAIN)
    return images, labels, ready(found.test, TEST)


def key(case: Case) -> str:
    """What makes two runs the same."""
    return json.dumps(asdict(case), sort_keys=True)


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=RESULTS, help="the file of finished runs")
    parser.add_argument("--table", action="store_true", help="print what is there")
    options = parser.parse_args()
    done = {}
    if options.runs.exists():
        done = {line["case"]: line for line in map(json.loads, options.runs.read_text().splitlines())}
    if options.table:
        for case in cases():
            if found := done.get(key(case)):
                print(
                    f"{case.name:32} {case.levels!s:44} lr {case.lr:<4} seed {case.seed} growth {case.growth} "
                    f"{found['accuracy']:.1f} % {found['seconds']:.0f} s {found['epochs_of_work']:.2f} epochs"
                )
        return
    torch.set_num_threads(1)
    images, labels, test = load()
    for case in cases():
        if key(case) not in done:
            line = {"case": key(case), **train(case, images, labels, test)}
            with options.runs.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
