"""Which method reaches plain backpropagation's accuracy in less time: `python -m benchmarks.time_to_accuracy RUNS`.

Networks train on 20,000 CIFAR-10 images, or on the 1,800 images of an Imagenette part at 128 pixels. Plain
backpropagation takes 8 epochs (20 on Imagenette). `progressive` has 60 % of its batches at half size. It takes
a quarter more epochs, about 1.4 x less time, or as many, about 1.8 x less time. The three fillings of ADA-GP's cheap
slots (half-size batches, predictions, nothing) each get the time of plain backpropagation.

Learning rates are chosen on validation images (training images left out; for Imagenette half of the test images), on
one grid for plain training and `progressive`, with seed 0; for the larger networks in runs of a quarter of the length.
Accuracy is on the test images.

Every run is a folder below RUNS. Several processes may share the work, and any of them may be stopped at any time.
`--collect` adds what is finished to `benchmarks/results`. Those cases are not run again, on this machine or another;
delete their lines there to do so. `--table` prints what is there. Data: the folder named by ADAGP_DATA.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from filelock import BaseFileLock
from torch import Tensor

from adagp import data
from adagp.data import Batches, DataSet
from adagp.files import write_bytes
from adagp.training import DivergedError, Recipe, Run, RunFolder, RunFolderError, Session, train
from adagp.training.run.lock import lock

EPOCHS = 8
SEEDS = (0, 1, 2)
VALIDATION = 4_000
COLLECTED = Path(__file__).parent / "results" / "time_to_accuracy.json"
# Epochs that take the time of 8 plain ones. On a shortened ladder 42 % of the batches are GP batches. A GP batch costs
# 0.34 of a plain one, a BP batch with the predictor learning 1.03, and a half-size batch 0.25.
EQUAL_TIME = {"coarse": 11.65, "adagp": 10.8, "skip": 13.75}
PROGRESSIVE_EPOCHS = 10


@dataclass(frozen=True)
class Case:
    """One training."""

    network: str
    method: str
    epochs: float
    lr: float
    seed: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.network}-{self.method}-{self.epochs:g}-lr{self.lr:g}-seed{self.seed}"

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        large = self.network.startswith("imagenette-")
        batch, images = (32, 1_800) if large else (128, 20_000)
        return Recipe(
            model=self.network.removeprefix("imagenette-"),
            data="imagenette" if large else "cifar10",
            image_size=128 if large else None,
            method=self.method,
            epochs=round(self.epochs) if self.epochs >= 1 else 1,
            steps=round(self.epochs * (images // batch)),
            batch_size=batch,
            lr=self.lr,
            lr_warmup=0.1,
            seed=self.seed,
            train_limit=images,
            test_limit=500,
            threads=1,
        )


@dataclass(frozen=True)
class Network:
    """A network and how it is trained.

    Attributes:
        name: The model, after `imagenette-` where it trains on that.
        rates: The learning rates tried.
        tuning: The length of the runs that choose a rate, as a share of the whole.
        slots_seeds: The seeds with which the fillings of the cheap slots are run.
        epochs: Those of plain training.
    """

    name: str
    rates: tuple[float, ...]
    tuning: float = 0.25
    slots_seeds: tuple[int, ...] = (0,)
    epochs: float = EPOCHS


NETWORKS = (
    Network("resnet20", (0.2, 0.4, 0.8), tuning=1, slots_seeds=SEEDS),
    Network("vgg13", (0.05, 0.1, 0.2)),
    Network("mobilenet_v2", (0.1, 0.2, 0.4)),
    Network("imagenette-mobilenet_v2", (0.05, 0.1, 0.2), epochs=20),
)


class Study:
    """The runs below a folder, and those that were collected before."""

    def __init__(self, folder: Path, collected: Path = COLLECTED) -> None:
        """Neither need exist yet."""
        self.folder, self._file = folder, collected
        self._collected: dict[str, dict[str, float]] = json.loads(collected.read_text()) if collected.exists() else {}

    def result(self, case: Case) -> dict[str, float] | None:
        """Accuracy on validation and test images of a finished case, in per cent."""
        path = self.folder / case.folder / "scores.json"
        found: dict[str, float] | None = json.loads(path.read_text()) if path.exists() else None
        return found or self._collected.get(case.folder)

    def collect(self) -> None:
        """Add every finished run below the folder to the collected ones."""
        found = {path.parent.name: json.loads(path.read_text()) for path in self.folder.glob("*/scores.json")}
        lines = [
            f"  {json.dumps(name)}: {json.dumps(scores)}" for name, scores in sorted((self._collected | found).items())
        ]
        write_bytes(self._file, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    def best(self, cases: list[Case]) -> Case | None:
        """The case with the best accuracy on validation images, once all are finished."""
        results = [self.result(case) for case in cases]
        if any(result is None for result in results):
            return None
        return max(zip(cases, results, strict=True), key=lambda pair: pair[1]["validation"])[0]  # type: ignore[index]

    def cases(self, networks: tuple[Network, ...]) -> Iterator[Case]:
        """What is to be run, in order of weight; later cases depend on the rates that earlier ones chose."""
        for network in networks:
            scale = network.epochs / EPOCHS
            epochs = {"progressive": PROGRESSIVE_EPOCHS * scale, "bp": network.epochs}
            tuned = {
                method: [Case(network.name, method, count * network.tuning, lr) for lr in network.rates]
                for method, count in epochs.items()
            }
            for pair in zip(*tuned.values(), strict=True):
                yield from pair
            chosen = {method: self.best(found) for method, found in tuned.items()}
            for seed in SEEDS:
                for method, case in chosen.items():
                    if case is not None:
                        yield replace(case, epochs=epochs[method], seed=seed)
            if (small_first := chosen["progressive"]) is not None:
                for seed in SEEDS:
                    yield replace(small_first, epochs=network.epochs, seed=seed)
            if (plain := chosen["bp"]) is not None:
                for seed in network.slots_seeds:
                    for method in EQUAL_TIME:
                        yield replace(plain, method=method, epochs=EQUAL_TIME[method] * scale, seed=seed)

    def run_all(self, networks: tuple[Network, ...]) -> None:
        """Run what is missing and not under way in another process, until nothing is left."""
        datasets: dict[str, DataSet] = {}
        while claimed := next(filter(None, map(self.claim, self.cases(networks))), None):
            case, _held = claimed
            recipe = case.recipe()
            if recipe.data not in datasets:
                datasets[recipe.data] = data.load(recipe.data)  # type: ignore[assignment]
            self._run(case, recipe, datasets[recipe.data])

    def claim(self, case: Case) -> tuple[Case, BaseFileLock] | None:
        """The case with the lock of its folder, to be kept while it runs; None if it is done or under way elsewhere."""
        if self.result(case) is not None:
            return None
        folder = self.folder / case.folder
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return case, lock(folder)
        except RunFolderError:
            return None

    def _run(self, case: Case, recipe: Recipe, dataset: DataSet) -> None:
        print(case.folder, flush=True)
        run, folder = Run(recipe, dataset), RunFolder(self.folder / case.folder)
        folder.prepare(run, resume=True)
        folder.restore(run)
        try:
            train(run, folder, Session(checkpoint_seconds=60))
        except DivergedError:
            scores = {"validation": 0.0, "test": 0.0}
        else:
            scores = accuracies(run, dataset)
        (self.folder / case.folder / "scores.json").write_text(json.dumps(scores))
        print(case.folder, scores, flush=True)

    def table(self, networks: tuple[Network, ...]) -> None:
        """Print every finished case, and means over seeds."""
        groups: dict[Case, list[dict[str, float]]] = {}
        for case in dict.fromkeys(self.cases(networks)):
            if (found := self.result(case)) is not None:
                groups.setdefault(replace(case, seed=0), []).append(found)
        for case, results in groups.items():
            tests = ", ".join(f"{result['test']:.2f}" for result in results)
            print(
                f"{case.network:20} {case.method:12} {case.epochs:5g} epochs, lr {case.lr:<5g} "
                f"validation {results[0]['validation']:.2f}  test {tests}  mean {mean(r['test'] for r in results):.2f}"
            )


def accuracies(run: Run, dataset: DataSet) -> dict[str, float]:
    """Accuracy in per cent on validation and test images, neither of which the run has trained on."""
    if isinstance(dataset.train.images, Tensor):
        seen = run.recipe.train_limit or 0
        validation, test = _part(dataset.train, slice(seen, seen + VALIDATION)), dataset.test
    else:
        dataset = dataset.resized(run.recipe.image_size or dataset.size)
        half = len(dataset.test.labels) // 2
        validation, test = _part(dataset.test, slice(half)), _part(dataset.test, slice(half, None))
    run.model.eval()
    return {name: _accuracy(run, dataset, split) for name, split in (("validation", validation), ("test", test))}


def _part(split: Any, which: slice) -> Any:
    images = split.images
    chosen = images[which] if isinstance(images, Tensor) else replace(images, paths=images.paths[which])
    return replace(split, images=chosen, labels=split.labels[which])


@torch.no_grad()
def _accuracy(run: Run, dataset: DataSet, split: Any) -> float:
    batches = Batches(split, 100, seed=0, train=False, mean=dataset.mean, std=dataset.std)
    right = seen = 0
    for x, y in batches.epoch(0):
        right += int((run.model(x.contiguous(memory_format=torch.channels_last)).argmax(1) == y).sum())
        seen += len(y)
    return 100 * right / seen


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--networks", nargs="*", default=[network.name for network in NETWORKS])
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--collect", action="store_true", help="add what is finished to benchmarks/results")
    options = parser.parse_args()
    networks = tuple(network for network in NETWORKS if network.name in options.networks)
    study = Study(options.runs)
    if options.collect:
        study.collect()
    elif options.table:
        study.table(networks)
    else:
        torch.set_num_threads(1)
        study.run_all(networks)


if __name__ == "__main__":
    main()
