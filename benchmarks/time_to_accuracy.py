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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from adagp.training import Recipe
from benchmarks.study import RESULTS, SEEDS, Study, options_of_study

EPOCHS = 8
COLLECTED = RESULTS / "time_to_accuracy.json"
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
    Network("vgg13", (0.00625, 0.0125, 0.025, 0.05)),
    Network("mobilenet_v2", (0.1, 0.2, 0.4)),
    Network("imagenette-mobilenet_v2", (0.05, 0.1, 0.2), epochs=20),
)


class TimeToAccuracy(Study[Case]):
    """The study of some networks."""

    def __init__(self, folder: Path, networks: Sequence[Network] = NETWORKS, collected: Path = COLLECTED) -> None:
        super().__init__(folder, collected)
        self._networks = networks

    def cases(self) -> Iterator[Case]:
        """What is to be run, in order of weight; later cases depend on the rates that earlier ones chose."""
        for network in self._networks:
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
            if (plain := chosen["bp"]) is not None:
                for seed in network.slots_seeds:
                    for method in EQUAL_TIME:
                        yield replace(plain, method=method, epochs=EQUAL_TIME[method] * scale, seed=seed)
            if (small_first := chosen["progressive"]) is not None:
                for seed in SEEDS:
                    yield replace(small_first, epochs=network.epochs, seed=seed)

    def table(self) -> None:
        """Print every finished case, and means over seeds."""
        for case, results in self.groups().items():
            tests = ", ".join(f"{result['test']:.2f}" for result in results)
            print(
                f"{case.network:20} {case.method:12} {case.epochs:5g} epochs, lr {case.lr:<5g} "
                f"validation {results[0]['validation']:.2f}  test {tests}  mean {mean(r['test'] for r in results):.2f}"
            )


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = options_of_study(__doc__)
    parser.add_argument("--networks", nargs="*", default=[network.name for network in NETWORKS])
    options = parser.parse_args()
    networks = tuple(network for network in NETWORKS if network.name in options.networks)
    TimeToAccuracy(options.runs, networks).serve(options)


if __name__ == "__main__":
    main()
