"""What `sampled` costs in accuracy: `python -m benchmarks.sampled_accuracy RUNS`.

A ResNet-8 and a VGG-13 train on 12,800 images of CIFAR-10 for 8 epochs, and a Transformer on Multi30k, plain, sampled
at a half and a quarter of the positions, and by `economical`; on one thread, with three seeds. Each method's learning
rate is chosen with seed 0 on training images left out, on one grid.

Every run is a folder below RUNS, and a finished one is a line in benchmarks/results/sampled-accuracy.jsonl, so that
the study may be stopped at any time and goes on where it was. `--table` prints what is there. Data: the folder named
by ADAGP_DATA.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from adagp import data
from adagp.data import DataSet
from adagp.training import DivergedError, Recipe, Run, RunFolder, Session, train
from adagp.training.recipe_files import load_preset
from benchmarks.time_to_accuracy import accuracies

RESULTS = Path(__file__).with_name("results") / "sampled-accuracy.jsonl"
SEEDS = (0, 1, 2)
TRAIN, TEST = 12_800, 4_000
METHODS = (("bp", 1.0), ("sampled", 0.5), ("sampled", 0.25), ("economical", 1.0))


@dataclass(frozen=True)
class Case:
    """One training; the rate counts for `sampled` alone."""

    network: str
    method: str
    rate: float
    lr: float
    keep: str = "input"
    seed: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder."""
        rows = "-rows" if self.keep == "rows" else ""
        return f"{self.network}-{self.method}-{self.rate:g}{rows}-lr{self.lr:g}-seed{self.seed}"

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        sampling = {"rate": self.rate, "keep": self.keep} if self.method == "sampled" else {}
        common = {"method": self.method, "lr": self.lr, "seed": self.seed, "threads": 1, **sampling}
        if self.network == "transformer":
            return load_preset("multi30k-transformer-tuned").recipe.replace(**common)
        sizes = {"train_limit": TRAIN, "test_limit": TEST, "batch_size": 128, "epochs": 8, "lr_warmup": 0.1}
        return Recipe(model=self.network, data="cifar10", **sizes, **common)  # type: ignore[arg-type]


GRIDS = {"resnet8": (0.1, 0.2, 0.4, 0.8), "vgg13": (0.02, 0.05, 0.1)}


class Study:
    """The runs below a folder, and the results that are kept."""

    def __init__(self, folder: Path) -> None:
        """`folder` need not exist yet."""
        self._folder = folder
        lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
        self.done: dict[str, dict[str, Any]] = {line["case"]: line for line in map(json.loads, lines)}

    def cases(self) -> Iterator[Case]:
        """What is to be run, in order of weight; seeds depend on the learning rates that earlier runs chose."""
        for network, grid in GRIDS.items():
            for method, rate in METHODS:
                tuned = [Case(network, method, rate, lr) for lr in grid]
                yield from tuned
                if all(_key(case) in self.done for case in tuned):
                    best = max(tuned, key=lambda case: self.done[_key(case)]["validation"])
                    yield from (replace(best, seed=seed) for seed in SEEDS)
        for seed in SEEDS:
            yield Case("transformer", "bp", 1.0, 2e-3, seed=seed)
            for rate, keep in ((0.5, "input"), (0.25, "input"), (0.5, "rows"), (0.25, "rows")):
                yield Case("transformer", "sampled", rate, 2e-3, keep, seed)

    def run_all(self) -> None:
        """Run what is missing."""
        datasets: dict[str, Any] = {}
        while case := next((case for case in self.cases() if _key(case) not in self.done), None):
            recipe = case.recipe()
            if recipe.data not in datasets:
                datasets[recipe.data] = data.load_any(recipe.data)
            print(case.folder, flush=True)
            line = {"case": _key(case), **self._run(case, recipe, datasets[recipe.data])}
            self.done[_key(case)] = line
            RESULTS.parent.mkdir(exist_ok=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _run(self, case: Case, recipe: Recipe, dataset: Any) -> dict[str, Any]:
        run, folder = Run(recipe, dataset), RunFolder(self._folder / case.folder)
        folder.prepare(run, resume=True)
        folder.restore(run)
        try:
            result = train(run, folder, Session(checkpoint_seconds=60))
        except DivergedError:
            return {"validation": 0.0, "test": 0.0, "seconds": run.train_seconds, "reasons": []}
        scores = accuracies(run, dataset) if isinstance(dataset, DataSet) else {"test": result["scores"][-1]}
        return {**scores, "seconds": result["train_seconds"], "reasons": result["reasons"]}

    def table(self) -> None:
        """Print means over seeds, with standard deviations."""
        groups: dict[Case, list[dict[str, Any]]] = {}
        for case in dict.fromkeys(self.cases()):
            if (found := self.done.get(_key(case))) is not None:
                groups.setdefault(replace(case, seed=0), []).append(found)
        print(
            "| network | method | rate | keep | lr | runs | test | validation | seconds |", "|---" * 9 + "|", sep="\n"
        )
        for case, found in groups.items():
            tests = [one["test"] for one in found]
            spread = f" ± {stdev(tests):.2f}" if len(tests) > 1 else ""
            print(
                f"| {case.network} | {case.method} | {case.rate:g} | {case.keep} | {case.lr:g} | {len(found)} | "
                f"{mean(tests):.2f}{spread} | {found[0].get('validation', float('nan')):.2f} | "
                f"{mean(one['seconds'] for one in found):.0f} |"
            )


def _key(case: Case) -> str:
    """What makes two runs the same."""
    return json.dumps(asdict(case), sort_keys=True)


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=Path("runs/sampled"))
    parser.add_argument("--table", action="store_true", help="print what is there")
    options = parser.parse_args()
    study = Study(options.runs)
    if options.table:
        study.table()
    else:
        study.run_all()


if __name__ == "__main__":
    main()
