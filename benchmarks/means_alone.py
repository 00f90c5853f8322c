"""What a small model loses without the predictor's network: `python -m benchmarks.means_alone RUNS.json`.

The `adagp` method of `make demo` (ResNet-8 on MNIST-5k, its own recipe, one thread), with the network and by means
alone, under the same seeds. RUNS.json holds the finished runs, so that the study continues where it was stopped;
`--table` prints what is there. The cosine is that of the whole prediction with the true gradient, in the BP batches
after the first GP batch.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from adagp import data, predictors
from adagp.measure import cpu_threads
from adagp.predictors import TrainingExample, TrustedPredictor
from adagp.quality import GradientAlignment, overall_cosine
from adagp.training import Recipe, Run
from adagp.training.recipe_files import load_preset
from benchmarks.runs import Runs

SEEDS = range(6)
FEWEST_WEIGHTS = {"trusted-network": 0, "trusted-means": 10**9}


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        predictor: `trusted-network` or `trusted-means`.
        seed: Of the weights and the order.
    """

    predictor: str
    seed: int

    def recipe(self) -> Recipe:
        """The demo's, with this predictor."""
        return load_preset("demo").recipe.replace(method="adagp", predictor=self.predictor, seed=self.seed, threads=1)


def cases() -> Iterator[Case]:
    """Both predictors, seed by seed."""
    return (Case(name, seed) for seed in SEEDS for name in FEWEST_WEIGHTS)


def train(case: Case, dataset: Any) -> dict[str, float]:
    """One run: its accuracy on test images as a share, and the mean cosine."""
    run = Run(case.recipe(), dataset)
    cosines: list[float] = []

    assert run.gp.predictor is not None
    learn = run.gp.predictor.learn

    def watched(examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        alignments = learn(examples)
        if run.gp.counts().get("predicted"):
            cosines.append(overall_cosine(alignments))
        return alignments

    run.gp.predictor.learn = watched  # type: ignore[method-assign]
    with cpu_threads(1):
        while not run.finished:
            while not run.epoch_complete:
                run.step()
            run.finish_epoch()
    return {"accuracy": run.scores[-1], "cosine": mean(cosines), "gp_batches": float(len(run.batch_seconds["GP"]))}


def table(runs: Runs) -> None:
    """Print each finished run, then means and paired differences."""
    names = list(FEWEST_WEIGHTS)
    found = {name: [runs.get(Case(name, seed)) for seed in SEEDS] for name in names}
    print("| predictor | accuracy, by seed | mean | cosine, by seed | mean |", "|---|---|--:|---|--:|", sep="\n")
    for name, results in found.items():
        done = [one for one in results if one is not None]
        if done:
            accuracies, cosines = ([one[key] for one in done] for key in ("accuracy", "cosine"))
            print(
                f"| {name} | {', '.join(f'{one:.1%}' for one in accuracies)} | {mean(accuracies):.2%} "
                f"| {', '.join(f'{one:.3f}' for one in cosines)} | {mean(cosines):.3f} |"
            )
    pairs = [(one, two) for one, two in zip(*found.values(), strict=True) if one is not None and two is not None]
    for key in ("accuracy", "cosine") if len(pairs) > 1 else ():
        differences = [two[key] - one[key] for one, two in pairs]
        print(
            f"{names[1]} - {names[0]}, {key}: {mean(differences):+.4f} ± {stdev(differences) / len(pairs) ** 0.5:.4f} "
            f"(standard error, {len(pairs)} pairs)"
        )


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--table", action="store_true", help="print what is there")
    options = parser.parse_args()
    runs = Runs(options.runs)
    if not options.table:
        for name, fewest in FEWEST_WEIGHTS.items():
            predictors.register(name)(lambda fewest=fewest: TrustedPredictor(fewest_weights=fewest))
        dataset = data.load_any("mnist5k")
        for case in cases():
            if runs.get(case) is None:
                runs.add(case, train(case, dataset))
                print(case, runs.get(case), flush=True)
    table(runs)


if __name__ == "__main__":
    main()
