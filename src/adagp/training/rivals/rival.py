"""The places at which a rival may change plain training."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from adagp.data import AnyDataSet
from adagp.training.recipe import Recipe
from adagp.training.tasks import SampleTask, Task


@dataclass(frozen=True)
class TrainingBatch:
    """One batch and where it is in the run.

    Attributes:
        task: The run's task.
        network: The network, as the task calls it.
        data: The batch, as the task made it.
        device: Where to compute.
        scale: The fraction of their size in `data` that samples are to have.
        epoch: From 0.
        index: Of the batch in its epoch.
        progress: The part of the run that is done, from 0 to 1.
    """

    task: Task
    network: nn.Module
    data: Any
    device: torch.device
    scale: float
    epoch: int
    index: int
    progress: float


def with_samples(task: Task, method: str) -> SampleTask:
    """The task, if it knows the loss of every sample.

    Raises:
        ValueError: When it does not.
    """
    if not isinstance(task, SampleTask):
        raise ValueError(
            f"method {method} needs the loss of every sample, which detection does not have: choose another"
        )
    return task


class Rival:
    """Changes nothing; a rival overrides what it needs."""

    stages: ClassVar[tuple[tuple[float, float], ...]] = ((0.0, 1.0),)
    """A point of progress for each kind of batch that costs something else, and the share of such batches in a run."""

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe that the task is built from."""
        return recipe

    def dataset(self, recipe: Recipe, dataset: AnyDataSet) -> AnyDataSet:
        """The data that the task is built from."""
        return dataset

    def begin(self, task: Task, model: nn.Module, seed: int, total_steps: int) -> None:
        """Look at the run before its first batch."""

    def before_batch(self, model: nn.Module, progress: float) -> None:
        """Prepare the model for a batch."""

    def loss(self, batch: TrainingBatch) -> Tensor:
        """The loss to be minimised; runs inside the engine's closure."""
        return batch.task.loss(batch.network, batch.data, batch.device, batch.scale)

    def after_batch(self, model: nn.Module) -> None:
        """Look at the weights after the optimizer's step."""

    def weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """The weights to evaluate and to keep; None: those of the model."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What has to be saved: tensors and plain values of fixed shapes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
