"""What `sampled` and `local` gradients cost in accuracy: `python -m benchmarks.equal_epochs RUNS`.

A ResNet-8 and a VGG-13 train on 12,800 images of CIFAR-10 for 8 epochs, batch 128: plainly, sampled at a half and a
quarter of the positions, by `economical`, and in two local parts. A Transformer 128 wide trains on Multi30k for 5,
plainly and sampled, also with `keep="rows"`. One thread, three seeds; of the Transformer's quarters one seed. Learning
rates are chosen with seed 0 on training images left out: for the ResNet-8 each method's own, of three; for VGG-13 that
of plain backpropagation, in runs of a quarter of the length. The Transformer has that of its preset.

Every run is a folder below RUNS. Several processes may share the work, and any of them may be stopped at any time.
`--collect` adds what is finished to `benchmarks/results`. Those cases are not run again, on this machine or another;
delete their lines there to do so. `--table` prints what is there. Data: the folder named by ADAGP_DATA.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from adagp.training import Recipe
from adagp.training.recipe_files import load_preset
from benchmarks.study import RESULTS, SEEDS, Study, options_of_study

COLLECTED = RESULTS / "equal_epochs.json"
TRAIN, EPOCHS = 12_800, 8
PARTS = 2
RESNET_LRS, VGG_LRS, TRANSFORMER_LR = (0.4, 0.8, 0.2), (0.0125, 0.025, 0.00625), 2e-3


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        network: The model.
        method: As in recipes.
        lr: The learning rate at its peak.
        rate: The share of positions that `sampled` draws.
        keep: What `sampled` keeps until the backward.
        length: The share of the epochs that is run.
        seed: Of the weights and the order.
    """

    network: str
    method: str
    lr: float
    rate: float = 1.0
    keep: str = "input"
    length: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        """The method with its options."""
        if self.method == "local":
            return f"local-{PARTS}"
        rows = "-rows" if self.keep == "rows" else ""
        return f"sampled-{self.rate:g}{rows}" if self.method == "sampled" else self.method

    @property
    def folder(self) -> str:
        """The name of its folder."""
        short = "" if self.length == 1 else f"-{self.length:g}"
        return f"{self.network}-{self.name}{short}-lr{self.lr:g}-seed{self.seed}"

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        common: dict[str, Any] = {"method": self.method, "lr": self.lr, "seed": self.seed, "threads": 1}
        if self.method == "sampled":
            common |= {"rate": self.rate, "keep": self.keep}
        elif self.method == "local":
            common |= {"parts": PARTS}
        if self.network == "transformer":
            return load_preset("multi30k-transformer-tuned").recipe.replace(**common)
        return Recipe(
            model=self.network,
            data="cifar10",
            train_limit=TRAIN,
            test_limit=500,
            batch_size=128,
            epochs=max(1, round(EPOCHS * self.length)),
            lr_warmup=0.1,
            **common,
        )


def image_methods(network: str, lr: float) -> tuple[Case, ...]:
    """Each method on one network."""
    return (
        Case(network, "bp", lr),
        Case(network, "sampled", lr, 0.5),
        Case(network, "local", lr),
        Case(network, "economical", lr),
        Case(network, "sampled", lr, 0.25),
    )


def text_methods(lr: float) -> tuple[Case, ...]:
    """Each method on the Transformer."""
    return (
        Case("transformer", "bp", lr),
        Case("transformer", "sampled", lr, 0.5, "rows"),
        Case("transformer", "sampled", lr, 0.5),
    )


def text_at_a_quarter(lr: float) -> tuple[Case, ...]:
    """A quarter of the rows lost so much that one seed says it."""
    return Case("transformer", "sampled", lr, 0.25, "rows"), Case("transformer", "sampled", lr, 0.25)


def _with_seeds(cases: Iterable[Case]) -> Iterator[Case]:
    chosen = list(cases)
    return (replace(case, seed=seed) for seed in SEEDS for case in chosen)


class EqualEpochs(Study[Case]):
    """The study."""

    def __init__(self, folder: Path, collected: Path = COLLECTED) -> None:
        super().__init__(folder, collected)

    def cases(self) -> Iterator[Case]:
        """What is to be run, in order of weight; some follow the rates that earlier ones chose."""
        yield from _with_seeds(image_methods("resnet8", RESNET_LRS[0]))
        text = text_methods(TRANSFORMER_LR)
        yield from (*text, *text_at_a_quarter(TRANSFORMER_LR))
        grid = [image_methods("resnet8", lr) for lr in RESNET_LRS]
        yield from chain.from_iterable(grid)
        yield from _with_seeds(filter(None, map(self.best, zip(*grid, strict=True))))
        tuned = [Case("vgg13", "bp", lr, length=0.25) for lr in VGG_LRS]
        yield from tuned
        plain = self.best(tuned)
        large = () if plain is None else image_methods("vgg13", plain.lr)
        yield from large
        yield from _with_seeds(text)
        yield from _with_seeds(large[:3])
        yield from _with_seeds(large)

    def table(self) -> None:
        """Print means over seeds, with standard deviations."""
        print("| network | method | lr | test, by seed | mean |", "|---|---|--:|---|--:|", sep="\n")
        for case, results in self.groups().items():
            tests = [result["test"] for result in results]
            spread = f" ± {stdev(tests):.2f}" if len(tests) > 1 else ""
            short = "" if case.length == 1 else f", {case.length:g} of the epochs"
            print(
                f"| {case.network} | {case.name}{short} | {case.lr:g} | {', '.join(f'{test:.2f}' for test in tests)} | "
                f"{mean(tests):.2f}{spread} |"
            )


def main() -> None:
    """Run what is missing, or print what is there."""
    options = options_of_study(__doc__).parse_args()
    EqualEpochs(options.runs).serve(options)


if __name__ == "__main__":
    main()
