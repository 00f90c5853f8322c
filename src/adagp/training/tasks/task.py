"""What the training loop asks of a task."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Metric:
    """A figure of an evaluation that is the larger the better.

    Attributes:
        name: What files call it.
        label: What people call it.
        unit: What stands behind a value in a sentence.
        scale: What a stored value is multiplied by where it is shown.
        is_share: Whether it is the share of test items that are right, so that their number says how fine it resolves.
    """

    name: str
    label: str
    unit: str = "%"
    scale: float = 100.0
    is_share: bool = False

    @property
    def heading(self) -> str:
        """Over a column or beside an axis of values."""
        return f"{self.label} %" if self.unit.startswith("%") else self.label

    def cell(self, value: float) -> str:
        """A value below its heading."""
        return f"{self.scale * value:.2f}"

    def show(self, value: float) -> str:
        """A value in a sentence."""
        return f"{self.cell(value)} {self.unit}"


@dataclass(frozen=True)
class Evaluation:
    """The mean loss over the test items, and the task's metrics by name."""

    loss: float
    metrics: dict[str, float]


class Task(Protocol):
    """One recipe's data, and what is done with it. Everything is a pure function of the recipe and the data."""

    metrics: tuple[Metric, ...]
    """What an evaluation tells beside the loss; the first is the one that methods are judged by."""
    items: str
    """What an epoch goes through, in the plural."""

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch."""

    @property
    def test_items(self) -> int:
        """How many items an evaluation is over."""

    def build_model(self) -> nn.Module:
        """The recipe's network in the form that fits the data; its weights follow torch's global seed."""

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """The training batches of an epoch from `start` on, the same as those of the whole epoch."""

    def share(self, batch: Any, rank: int, count: int) -> Any:
        """The part of a training batch that is one rank's of `count`; all of it where there is only one."""

    def loss(self, model: nn.Module, batch: Any, device: torch.device) -> Tensor:
        """The loss of a training batch, which is moved to `device`; runs inside the engine's closure."""

    def evaluate(self, model: nn.Module, device: torch.device, *, last: bool) -> Evaluation:
        """Judge a model in `eval` mode on the test items; what takes long is told at the `last` evaluation only."""

    def keep(self, folder: Path) -> None:
        """Write what else a trained model needs to be used into the run's folder.

        Raises:
            RunFolderError: When the folder holds other files of the same kind, or they cannot be written.
        """
