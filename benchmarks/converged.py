"""The papers' claim, about networks trained to the end: `python -m benchmarks.converged RUNS`.

A ResNet-14 trains on all 50,000 images of CIFAR-10 for 30 epochs, batch 128. The ladder has the paper's proportions:
ten epochs of warm-up, four each of 4:1, 3:1 and 2:1, and the rest 1:1. `short-bp` is plain backpropagation with as many
epochs as take ADA-GP's time. `progressive` has 60 % of its batches at half size, which takes 0.55 of the work. All
train at the paper's rate (1e-3, plateau, no weight decay) and at a tuned one (cosine). One thread; two seeds of `bp`,
`adagp`, `skip` and `progressive`, one of the others.

Every run is a folder below RUNS. Several processes may share the work, and any of them may be stopped at any time.
`--collect` adds what is finished to `benchmarks/results`. Those cases are not run again, on this machine or another;
delete their lines there to do so. `--table` prints what is there. Data: the folder named by ADAGP_DATA.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from adagp.training import Recipe
from benchmarks.study import RESULTS, Study, options_of_study

COLLECTED = RESULTS / "converged.json"
EPOCHS = 30
# 43 % of the ladder's batches are GP batches, which cost 0.34 of a plain one; a BP batch with the predictor learning
# costs 1.03.
SHORT_EPOCHS = 22
RATES = {
    "tuned": {"lr": 0.4, "lr_schedule": "cosine", "lr_warmup": 0.1, "weight_decay": 5e-4},
    "paper": {"lr": 1e-3, "lr_schedule": "plateau", "weight_decay": 0.0},
}
TWICE, ONCE = ("bp", "adagp", "skip", "progressive"), ("short-bp", "mean")


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        method: As in recipes, or `short-bp`.
        rate: A name from `RATES`.
        seed: Of the weights and the order.
    """

    method: str
    rate: str
    seed: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.rate}-{self.method}-seed{self.seed}"

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        short = self.method == "short-bp"
        return Recipe(
            model="resnet14",
            data="cifar10",
            method="bp" if short else self.method,
            epochs=SHORT_EPOCHS if short else EPOCHS,
            batch_size=128,
            seed=self.seed,
            test_limit=2_000,  # of the curve; the final score is that of all test images
            threads=1,
            **RATES[self.rate],  # type: ignore[arg-type]
        )


class Converged(Study[Case]):
    """The study."""

    def __init__(self, folder: Path, collected: Path = COLLECTED) -> None:
        super().__init__(folder, collected)

    def cases(self) -> Iterator[Case]:
        """What is to be run, in order of weight."""
        first = [Case(method, rate) for rate in RATES for method in (*TWICE, *ONCE)]
        yield from first
        yield from (replace(case, seed=1) for case in first if case.method in TWICE)

    def table(self) -> None:
        """Print the accuracy of every finished case, and how it came there."""
        print(
            "| rate | method | test, by seed | mean | after 5, 10, 15, 20, 25 epochs |",
            "|---|---|---|--:|---|",
            sep="\n",
        )
        for case, results in self.groups().items():
            tests = [result["test"] for result in results]
            curve = ", ".join(f"{score:.1f}" for score in results[0]["curve"][4:-1:5])
            by_seed = ", ".join(f"{test:.2f}" for test in tests)
            print(f"| {case.rate} | {case.method} | {by_seed} | {mean(tests):.2f} | {curve} |")


if __name__ == "__main__":
    options = options_of_study(__doc__).parse_args()
    Converged(options.runs).serve(options)
