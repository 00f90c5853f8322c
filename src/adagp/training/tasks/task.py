"""What the training loop asks of a task."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from adagp.data.order import ScaleOf, full_size
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe


@dataclass(frozen=True)
class Metric:
    """A figure of an evaluation.

    Attributes:
        name: Its name in files.
        label: Its name in tables and sentences.
        unit: What follows a value in a sentence.
        scale: Factor between a stored value and the one that is shown.
        is_share: Whether it is the fraction of test items that are right, so that their number limits its resolution.
        lower_is_better: Whether a smaller value is the better one.
    """

    name: str
    label: str
    unit: str = "%"
    scale: float = 100.0
    is_share: bool = False
    lower_is_better: bool = False

    @property
    def heading(self) -> str:
        """The label of a column or axis of values."""
        return f"{self.label} %" if self.unit.startswith("%") else self.label

    def cell(self, value: float) -> str:
        """A value under `heading`."""
        return f"{self.scale * value:.2f}"

    def show(self, value: float) -> str:
        """A value in a sentence."""
        return f"{self.cell(value)} {self.unit}"

    def best(self, values: Iterable[float]) -> float:
        """The best of several values."""
        return min(values) if self.lower_is_better else max(values)

    def gain(self, value: float, reference: float) -> float:
        """By how much a value is better than a reference; negative if it is worse."""
        return reference - value if self.lower_is_better else value - reference


@dataclass(frozen=True)
class Evaluation:
    """The mean loss over the test items, and the task's metrics by name."""

    loss: float
    metrics: dict[str, float]


class Task(Protocol):
    """One recipe's data, and what is done with it. Everything is a pure function of the recipe and the data."""

    metrics: tuple[Metric, ...]
    """What an evaluation reports in addition to the loss; the first decides between methods."""
    items: str
    """The name of the training and test items, in the plural."""

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch."""

    @property
    def test_items(self) -> int:
        """Test items in an evaluation."""

    def build_model(self) -> nn.Module:
        """The recipe's network in the form that fits the data; its weights follow torch's global seed."""

    def epoch(self, epoch: int, start: int, scale_of: ScaleOf = full_size) -> Iterator[Any]:
        """The training batches of an epoch from batch `start` on; starting late does not change them.

        Batch `i` is loaded at the scale `scale_of(i)`.
        """

    def share(self, batch: Any, rank: int, count: int) -> Any:
        """The part of a training batch that belongs to one of `count` ranks."""

    def loss(self, model: nn.Module, batch: Any, device: torch.device, scale: float = 1.0) -> Tensor:
        """The loss of a training batch, which is moved to `device`; runs inside the engine's closure.

        `scale` is the fraction of their size in `batch` that samples are to have; tasks that know no sizes get 1.
        """

    def check_scales(self, model: nn.Module, scales: Collection[float]) -> None:
        """Refuse scales that the model cannot take.

        Raises:
            ValueError: When it cannot; the message names the module, the cause and a remedy.
        """

    def evaluate(self, model: nn.Module, device: torch.device, *, last: bool) -> Evaluation:
        """Evaluate a model in `eval` mode on the test items; slow metrics only at the `last` evaluation."""

    def keep(self, folder: Path) -> None:
        """Write what a trained model needs in addition to its weights into the run's folder.

        Raises:
            RunFolderError: When the folder holds other such files, or they cannot be written.
        """


@runtime_checkable
class SampleTask(Task, Protocol):
    """A task that knows the loss of every sample; detection does not, as its loss is a sum over boxes."""

    @property
    def train_items(self) -> int:
        """Training items."""

    def members(self, epoch: int, index: int) -> Tensor:
        """Indices of the training items in a batch."""

    def take(self, batch: Any, places: Tensor) -> Any:
        """Some samples of a batch, by their places in it."""

    def sample_losses(self, model: nn.Module, batch: Any, device: torch.device) -> Tensor:
        """The loss of every sample of a batch, at full size."""


@runtime_checkable
class LocalTask(Protocol):
    """What method `local` asks of a task in addition."""

    def target(self, batch: Any, device: torch.device) -> Tensor:
        """What heads are to predict of a training batch."""

    def head_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of a head's output, which has the form of the model's."""


def check_batch_size(recipe: Recipe, available: int, items: str, data: str) -> None:
    """Refuse data that does not fill one batch.

    Raises:
        RecipeError: When a batch is larger than the `available` training items, or the recipe's limit of them.
    """
    count = min(available, recipe.train_limit or available)
    if count < recipe.batch_size:
        raise RecipeError(
            f"batch_size = {recipe.batch_size} is larger than the {count} training {items} of '{data}', so an epoch "
            "would hold no full batch: lower batch_size"
        )
