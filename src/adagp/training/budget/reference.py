"""What a batch costs under each method, measured once and side by side; a budget is counted in these seconds.

A run's time is its batches times these costs, not what a clock said while it ran. So a busy machine, or two processes
that share the work, change nothing (Kaddour et al., No Train No Gain, arXiv 2307.06440, call it reference system time).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from adagp.data import AnyDataSet
from adagp.files import strict
from adagp.training.comparison.calibrate import Calibration, measure, steps_within
from adagp.training.errors import RunFolderError
from adagp.training.recipe import Recipe
from adagp.training.run.folder import make_folder, read_file, write_file
from adagp.training.run.lock import waiting_lock
from adagp.training.run.run import Run, steps_per_epoch
from adagp.training.run.session import Session
from adagp.training.tasks import Metric

LONGEST_SECONDS = 300.0
"""About how long the costs are measured; every run of the comparison is counted in them."""
_FOLDER, _FILE = "reference", "costs.json"
_PATIENCE_SECONDS = 3600.0


@dataclass(frozen=True)
class Cost:
    """What a batch of each kind costs, and how many batches an epoch has."""

    seconds: dict[str, float]
    steps_per_epoch: int


@dataclass(frozen=True)
class Reference:
    """What was measured once for a comparison.

    Attributes:
        budget_seconds: The reference seconds of the whole budget: plain backpropagation for the recipe's epochs.
        plain: The label of plain backpropagation at the recipe's batch size, beside which all else is measured.
        costs: The costs of every label.
        metrics: The task's metrics; the first is the score that methods are judged by.
        items: The name of the test items, in the plural.
        test_items: Their number.
        statistic: How a cost was computed.
    """

    budget_seconds: float
    plain: str
    costs: dict[str, Cost]
    metrics: tuple[Metric, ...]
    items: str
    test_items: int
    statistic: str

    def steps(self, label: str, recipe: Recipe, share: float) -> int:
        """The batches of a run that fit into a share of the budget."""
        cost = self.costs[label]
        calibration = Calibration({recipe.method: cost.seconds}, {})
        return steps_within(calibration, recipe, share * self.budget_seconds, cost.steps_per_epoch)

    def seconds(self, label: str, batches: Mapping[str, int]) -> float:
        """The reference seconds of so many batches of each kind; warm-up batches do the work of BP."""
        cost = self.costs[label].seconds
        fallback = max(cost.values())
        return sum(
            count * cost.get("BP" if kind == "WARMUP" else kind, fallback) for kind, count in batches.items() if count
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the inverse of `from_dict`."""
        values: dict[str, Any] = strict(dataclasses.asdict(self))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(
            **{
                **values,
                "costs": {label: Cost(**cost) for label, cost in values["costs"].items()},
                "metrics": tuple(Metric(**metric) for metric in values["metrics"]),
            }
        )


def stored_reference(path: Path) -> Reference | None:
    """The reference of the comparison in a folder; None when nothing was measured yet.

    Raises:
        RunFolderError: When the file cannot be used.
    """
    file = path / _FOLDER / _FILE
    if not file.exists():
        return None
    values = read_file(file)
    try:
        return Reference.from_dict(values)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"'{file}' holds no costs of this version of adagp ({error}): use the version that wrote it, or start in a "
            "new folder"
        ) from error


def complete_reference(
    recipes: Mapping[str, Recipe],
    plain: str,
    dataset: AnyDataSet,
    path: Path,
    *,
    device: torch.device,
    session: Session,
) -> Reference:
    """Measure what is not measured yet; one process does it, others wait.

    What is added later is measured beside plain backpropagation again, and counted in the first measurement's seconds:
    a machine that is slower by then makes no method dearer.

    Args:
        recipes: The recipe of every label whose costs are needed.
        plain: The label of plain backpropagation.
        dataset: The data of all of them.
        path: The folder of the comparison.
        device: Where to measure.
        session: May ask to stop.
    """
    make_folder(path / _FOLDER)
    held = waiting_lock(path / _FOLDER, _PATIENCE_SECONDS)
    try:
        known = stored_reference(path)
        missing = {label: recipe for label, recipe in recipes.items() if known is None or label not in known.costs}
        if known is not None and not missing:
            return known
        calibration = measure({plain: recipes[plain], **missing}, dataset, device, session, LONGEST_SECONDS)
        now = {label: Cost(calibration.seconds[label], steps_per_epoch(recipes[label], dataset)) for label in missing}
        reference = _first(recipes[plain], plain, now, calibration.statistic, dataset) if known is None else known
        if known is not None:
            scale = known.costs[plain].seconds["BP"] / calibration.seconds[plain]["BP"]
            scaled = {label: _scaled(cost, scale) for label, cost in now.items()}
            reference = dataclasses.replace(known, costs={**known.costs, **scaled})
        write_file(path / _FOLDER / _FILE, reference.to_dict())
        return reference
    finally:
        held.release()


def _first(recipe: Recipe, plain: str, costs: dict[str, Cost], statistic: str, dataset: AnyDataSet) -> Reference:
    task = Run(recipe, dataset).task
    cost = costs[plain]
    budget = recipe.epochs * cost.steps_per_epoch * cost.seconds["BP"]
    return Reference(budget, plain, costs, task.metrics, task.items, task.test_items, statistic)


def _scaled(cost: Cost, factor: float) -> Cost:
    return Cost({kind: factor * seconds for kind, seconds in cost.seconds.items()}, cost.steps_per_epoch)
