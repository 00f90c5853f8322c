"""The ranks that train one run together, as torchrun starts them; usually there is just one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from adagp.distributed.lost import raise_if_lost
from adagp.training.errors import RecipeError, TrainingError
from adagp.training.methods import Planning

T = TypeVar("T")

# A rank that dies closes its connections, which the others notice at once; this is for one that hangs.
PATIENCE = timedelta(minutes=10)
_EVALUATION_PATIENCE = timedelta(days=1)
_MIXING = (Planning.PREFIX, Planning.APPROXIMATION, Planning.SAMPLED, Planning.ECONOMICAL, Planning.TABLE)


@dataclass(frozen=True)
class World:
    """This process's rank among those that train one run. All ranks hold the same weights after every batch.

    Attributes:
        rank: From 0, the main rank.
        size: The number of ranks.
        waiting_group: A process group with a long timeout, in which the others wait for the main rank.
    """

    rank: int = 0
    size: int = 1
    waiting_group: distributed.ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that evaluates, writes files and prints."""
        return self.rank == 0

    def wrap(self, model: nn.Module, planning: Planning) -> nn.Module:
        """The model, in DistributedDataParallel where there are several ranks."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, find_unused_parameters=planning in _MIXING)

    def check_batch_size(self, batch_size: int) -> None:
        """Refuse a batch that the ranks cannot share equally.

        Raises:
            RecipeError: When `batch_size` is not a multiple of the number of ranks.
        """
        if batch_size % self.size:
            raise RecipeError(
                f"batch_size = {batch_size} cannot be shared equally by {self.size} ranks: make it a multiple of "
                f"{self.size}, or start another number of ranks"
            )

    def seed_batch(self, seed: int, step: int) -> None:
        """Seed every rank but the main one from the batch alone.

        Their random state then needs no saving, and a run can continue with another number of ranks.
        """
        if self.rank:
            torch.manual_seed(seed * 1_000_003 + step * 1_009 + self.rank)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set on any rank."""
        return flag if self.size == 1 else self._sum(float(flag)) > 0

    def mean(self, value: float) -> float:
        """The mean of `value` over the ranks."""
        return value if self.size == 1 else self._sum(value) / self.size

    def on_main(self, work: Callable[[], T]) -> T:
        """Run `work` on the main rank and broadcast its result; an error there is raised on every rank."""
        if self.size == 1:
            return work()
        message: list[Any] = [None, None]
        if self.is_main:
            try:
                message[0] = work()
            except TrainingError as error:
                message[1] = error
        distributed.broadcast_object_list(message, group=self.waiting_group)
        result, failure = message
        if failure is not None:
            raise failure
        answer: T = result
        return answer

    def _sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        if distributed.get_backend() == "nccl":
            total = total.cuda()
        try:
            distributed.all_reduce(total)
        except RuntimeError as error:
            raise_if_lost(error, "between two batches")
            raise
        return float(total)


@contextmanager
def join(device: torch.device) -> Iterator[World]:
    """The world that torchrun started this process in; a process started by itself is alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        waiting = distributed.new_group(backend="gloo", timeout=_EVALUATION_PATIENCE)
        yield World(distributed.get_rank(), size, waiting)
    finally:
        distributed.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """This rank's GPU where the device names none; else the device itself."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        return torch.device(device.type, int(os.environ["LOCAL_RANK"]))
    return device


def refuse_torchrun(command: str) -> None:
    """Refuse to run a single-process command in several processes.

    Raises:
        RecipeError: When torchrun started more than one.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RecipeError(f"`adagp {command}` runs in one process: start it without torchrun, or use `adagp train`")
