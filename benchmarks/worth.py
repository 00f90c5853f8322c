"""What a batch is worth that sends less: `python -m benchmarks.worth RUNS.json`.

Two ranks of one thread on this machine share every batch of 128 images and train a ResNet-20, or with `--network
resnet8` a smaller one, on 12,800 images of CIFAR-10, by the data-parallel ways of `benchmarks.links`: plain, PowerSGD
of rank 1, post-local SGD, and ADA-GP with one GP batch for each BP batch. The first tenth of the batches is plain in
all of them, and the learning rate rises in it; then it falls as a cosine to zero at the end of each run. SGD with
Nesterov momentum 0.9, weight decay 5e-4. Tested are 4,000 images, with the weights of the first rank. Data: ADAGP_DATA.

RUNS.json holds what is finished, so that the study continues where it was stopped. `--table` prints it. `--table LINKS`
also prints the seconds to the accuracy of plain backpropagation after its shortest run, on the links of which LINKS,
written by `python -m benchmarks.links --json --networks resnet20 --images 64`, has the seconds per batch.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from adagp import data, models
from benchmarks.coarse import BATCH, TRAIN, load
from benchmarks.distributed import on_ranks
from benchmarks.links import WAYS, Given
from benchmarks.pipelines import epochs_to, sgd
from benchmarks.runs import Runs

NETWORKS, RANKS, WARM_UP = ("resnet20", "resnet8"), 2, 0.1
SEEDS = (0, 1, 2)
EPOCHS = {"plain": (4,), "PowerSGD": (4, 6), "post-local SGD": (4, 6), "ADA-GP 1:1": (4, 8)}
RATES = {"plain": (0.4,), "PowerSGD": (0.4,), "post-local SGD": (0.4,), "ADA-GP 1:1": (0.4, 0.1)}


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        way: One of `benchmarks.links.WAYS`.
        epochs: After which the learning rate is 0.
        lr: The learning rate at its peak.
        seed: Of weights and order.
        images: Of the training data.
        network: One of `NETWORKS`.
    """

    way: str
    epochs: int
    lr: float
    seed: int
    images: int = TRAIN
    network: str = NETWORKS[0]


def trainings(network: str) -> Iterator[Training]:
    """The study, in order of weight."""
    for seed, way in product(SEEDS, WAYS):
        for epochs, lr in product(EPOCHS[way], RATES[way]):
            yield Training(way, epochs, lr, seed, network=network)


def train(rank: int, count: int, case: Training) -> dict[str, float]:
    """The accuracy in per cent."""
    images, labels, (pixels, classes) = load()
    torch.manual_seed(case.seed)
    network = models.build(
        case.network
    )  # contiguous: torch's averaging of post-local SGD mixes up channels-last weights
    optimizer = sgd(network.parameters(), case.lr)
    steps = case.epochs * case.images // BATCH
    warm_up = int(WARM_UP * steps)
    order, own = (torch.Generator().manual_seed(case.seed + other) for other in (0, 1000 * (rank + 1)))
    augment = data.Augment(padding=4, flip=True)
    mine: list[torch.Tensor] = []
    losses: list[float] = []

    def loss(model: Any) -> torch.Tensor:
        found = cross_entropy(model(mine[0]), mine[1])
        losses.append(float(found.detach()))
        return found

    run = WAYS[case.way](Given(network, loss, optimizer, max(2, warm_up)))
    picked = torch.empty(0, dtype=torch.long)
    for index in range(steps):
        optimizer.param_groups[0]["lr"] = case.lr * (
            index / warm_up if index < warm_up else (1 + cos(pi * (index - warm_up) / (steps - warm_up))) / 2
        )
        if len(picked) < BATCH:
            picked = torch.randperm(case.images, generator=order)
        share, picked = picked[:BATCH].chunk(count)[rank], picked[BATCH:]
        mine[:] = augment(images[share], own), labels[share]
        run()
    network.eval()
    with torch.no_grad():
        pairs = zip(pixels.split(500), classes.split(500), strict=True)
        right = sum(int((network(x).argmax(1) == y).sum()) for x, y in pairs)
    return {"accuracy": 100 * right / len(classes), "loss": statistics.fmean(losses[-20:])}


# --- tables


def accuracies(runs: Runs, network: str) -> dict[str, dict[int, list[float]]]:
    """Those of each way by the number of epochs, one number a seed; at the rate that is best on the average."""
    found: dict[str, dict[int, list[float]]] = {}
    for way, lengths in EPOCHS.items():
        for epochs in lengths:
            by_rate = {
                lr: [
                    run["accuracy"]
                    for seed in SEEDS
                    if (run := runs.get(Training(way, epochs, lr, seed, network=network)))
                ]
                for lr in RATES[way]
            }
            most = max(len(each) for each in by_rate.values())
            whole = [each for each in by_rate.values() if most and len(each) == most]
            if whole:
                found.setdefault(way, {})[epochs] = max(whole, key=statistics.fmean)
    return found


def seconds_to(epochs: float, way_seconds: float, plain_seconds: float) -> float:
    """Of a training whose first tenth is plain."""
    return epochs * TRAIN / BATCH * (WARM_UP * plain_seconds + (1 - WARM_UP) * way_seconds)


def table(runs: Runs, links: list[dict[str, Any]], network: str = NETWORKS[0]) -> str:
    """What is there of a network, as Markdown."""
    found = accuracies(runs, network)
    lengths = sorted({epochs for points in found.values() for epochs in points})
    lines = [f"| way | {' | '.join(f'{epochs} epochs' for epochs in lengths)} |", "|---" * (1 + len(lengths)) + "|"]
    for way, points in found.items():
        cells = [", ".join(f"{each:.1f}" for each in points.get(epochs, [])) or "-" for epochs in lengths]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    if "plain" not in found or not links:
        return "\n".join(lines)
    means = {way: {each: statistics.fmean(points[each]) for each in sorted(points)} for way, points in found.items()}
    target = means["plain"][min(means["plain"])]
    needed = {way: epochs_to(target, points) for way, points in means.items()}
    lines += ["", f"Seconds to {target:.1f} %:", "", f"| Mbit/s | ms one way | {' | '.join(means)} |"]
    lines.append("|---" * (2 + len(means)) + "|")
    for row in (row for row in links if row["network"] == network and row["seconds"]):
        seconds = row["seconds"]
        cells = [
            f"more than {seconds_to(max(means[way]), seconds[way], seconds['plain']):.0f}"
            if epochs is None
            else f"{seconds_to(epochs, seconds[way], seconds['plain']):.0f}"
            for way, epochs in needed.items()
        ]
        lines.append(f"| {row['megabits']} | {row['delay_ms']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--network", choices=NETWORKS, default=NETWORKS[0])
    parser.add_argument("--table", nargs="?", const="", metavar="LINKS", help="print what is there")
    parser.add_argument("--trial", action="store_true", help="one short run of each way, printed and not kept")
    options = parser.parse_args()
    runs = Runs(options.runs)
    if options.table is not None:
        links = json.loads(Path(options.table).read_text(encoding="utf-8"))["links"] if options.table else []
        print(table(runs, links, options.network))
        return
    if options.trial:
        for way in WAYS:
            case = Training(way, 1, RATES[way][0], 0, 8 * BATCH, options.network)
            print(case, on_ranks(train, RANKS, case))
        return
    for case in trainings(options.network):
        if runs.get(case) is None:
            runs.add(case, on_ranks(train, RANKS, case))


if __name__ == "__main__":
    main()
