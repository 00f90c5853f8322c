"""Many trainings by recipes, in any number of processes, each of which may be stopped at any time."""

import argparse
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from filelock import BaseFileLock
from torch import Tensor

from adagp import data
from adagp.data import Batches, DataSet
from adagp.files import write_bytes
from adagp.training import DivergedError, Recipe, Run, RunFolder, RunFolderError, Session, train
from adagp.training.run.lock import lock

VALIDATION = 4_000
SEEDS = (0, 1, 2)
RESULTS = Path(__file__).parent / "results"


class Training(Protocol):
    """One training of a study: a frozen dataclass."""

    @property
    def folder(self) -> str:
        """The name of its folder, which no other case has."""

    def recipe(self) -> Recipe:
        """The recipe of the run."""


C = TypeVar("C", bound=Training)


class Study(ABC, Generic[C]):
    """The runs below a folder, and those that were collected before."""

    def __init__(self, folder: Path, collected: Path) -> None:
        """Neither need exist yet."""
        self.folder, self._file = folder, collected
        self._collected: dict[str, dict[str, Any]] = json.loads(collected.read_text()) if collected.exists() else {}

    @abstractmethod
    def cases(self) -> Iterator[C]:
        """What is to be run, in order of weight; later cases may depend on the results of earlier ones."""

    def result(self, case: C) -> dict[str, Any] | None:
        """The scores of a finished case."""
        path = self.folder / case.folder / "scores.json"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found or self._collected.get(case.folder)

    def collect(self) -> None:
        """Add every finished run below the folder to the collected ones."""
        found = {path.parent.name: json.loads(path.read_text()) for path in self.folder.glob("*/scores.json")}
        lines = [
            f"  {json.dumps(name)}: {json.dumps(scores)}" for name, scores in sorted((self._collected | found).items())
        ]
        write_bytes(self._file, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    def best(self, cases: Sequence[C]) -> C | None:
        """The case with the best accuracy on validation images, once all are finished."""
        results = [self.result(case) for case in cases]
        if any(result is None for result in results):
            return None
        return max(zip(cases, results, strict=True), key=lambda pair: pair[1]["validation"])[0]  # type: ignore[index]

    def run_all(self) -> None:
        """Run what is missing and not under way in another process, until nothing is left."""
        datasets: dict[str, Any] = {}
        torch.set_num_threads(1)
        while claimed := next(filter(None, map(self.claim, self.cases())), None):
            case, _held = claimed
            recipe = case.recipe()
            if recipe.data not in datasets:
                datasets[recipe.data] = data.load_any(recipe.data)
            self._run(case, recipe, datasets[recipe.data])

    def claim(self, case: C) -> tuple[C, BaseFileLock] | None:
        """The case with the lock of its folder, to be kept while it runs; None if it is done or under way elsewhere."""
        if self.result(case) is not None:
            return None
        folder = self.folder / case.folder
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return case, lock(folder)
        except RunFolderError:
            return None

    def _run(self, case: C, recipe: Recipe, dataset: Any) -> None:
        print(case.folder, flush=True)
        run, folder = Run(recipe, dataset), RunFolder(self.folder / case.folder)
        folder.prepare(run, resume=True)
        folder.restore(run)
        try:
            result = train(run, folder, Session(checkpoint_seconds=60))
        except DivergedError:
            scores: dict[str, Any] = {"validation": 0.0, "test": 0.0}
        else:
            scores = accuracies(run, dataset) if isinstance(dataset, DataSet) else {"test": result["scores"][-1]}
            scores["curve"] = result["scores"]
        (self.folder / case.folder / "scores.json").write_text(json.dumps(scores))
        print(case.folder, scores, flush=True)

    @abstractmethod
    def table(self) -> None:
        """Print what is finished."""

    def serve(self, options: argparse.Namespace) -> None:
        """Do what `options_of_study` asked for."""
        if options.collect:
            self.collect()
        elif options.table:
            self.table()
        else:
            self.run_all()

    def groups(self) -> dict[C, list[dict[str, Any]]]:
        """The results of all finished cases, those that differ by the seed alone together."""
        found: dict[C, list[dict[str, Any]]] = {}
        for case in dict.fromkeys(self.cases()):
            if (result := self.result(case)) is not None:
                found.setdefault(replace(case, seed=0), []).append(result)  # type: ignore[type-var]
        return found


def options_of_study(about: str | None) -> argparse.ArgumentParser:
    """A parser of what every study takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--collect", action="store_true", help="add what is finished to benchmarks/results")
    return parser


def accuracies(run: Run, dataset: DataSet) -> dict[str, Any]:
    """Accuracy in per cent on validation and test images, neither of which the run has trained on.

    A run on all images has none left for validation.
    """
    if run.recipe.train_limit is None:
        run.model.eval()
        return {"test": _accuracy(run, dataset, dataset.test)}
    if isinstance(dataset.train.images, Tensor):
        seen = run.recipe.train_limit
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
