"""The processes that train one run together, as torchrun starts them; usually there is just one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from adagp.training.errors import RecipeError, TrainingError
from adagp.training.methods import Planning

T = TypeVar("T")

# A rank that dies closes its connections, which the others notice at once; this is for one that hangs.
PATIENCE = timedelta(minutes=10)
_EVALUATION_PATIENCE = timedelta(days=1)
_MIXING = (Planning.PREFIX, Planning.APPROXIMATION, Planning.TABLE)


@dataclass(frozen=True)
class Team:
    """This process's place among those that train one run; every rank has the same weights after every batch.

    Attributes:
        rank: From 0, which alone evaluates, writes and speaks.
        count: How many there are.
        waiting_group: Where the others wait for the first, for as long as it takes.
    """

    rank: int = 0
    count: int = 1
    waiting_group: distributed.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that evaluates, writes and speaks."""
        return self.rank == 0

    def wrap(self, model: nn.Module, planning: Planning) -> nn.Module:
        """The model as the batches go through it: DistributedDataParallel where there are several ranks."""
        if self.count == 1:
            return model
        return DistributedDataParallel(model, find_unused_parameters=planning in _MIXING)

    def check_batch_size(self, batch_size: int) -> None:
        """RecipeError where the ranks cannot have equal shares of a batch."""
        if batch_size % self.count:
            raise RecipeError(
                f"batch_size = {batch_size} cannot be shared equally by {self.count} ranks: make it a multiple of "
                f"{self.count}, or start another number of ranks"
            )

    def seed_batch(self, seed: int, step: int) -> None:
        """Give every rank but the first random numbers of its own, which depend on nothing but the batch.

        So nothing of them needs to be saved, and a run can go on with another number of ranks.
        """
        if self.rank:
            torch.manual_seed(seed * 1_000_003 + step * 1_009 + self.rank)

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank."""
        return flag if self.count == 1 else self._sum(float(flag)) > 0

    def mean(self, value: float) -> float:
        """Of a value over the ranks."""
        return value if self.count == 1 else self._sum(value) / self.count

    def lead(self, work: Callable[[], T]) -> T:
        """What `work` gives on the first rank, told to all; if it fails there, it fails on all with the same error."""
        if self.count == 1:
            return work()
        told: list[Any] = [None, None]
        if self.leads:
            try:
                told[0] = work()
            except TrainingError as error:
                told[1] = error
        distributed.broadcast_object_list(told, group=self.waiting_group)
        result, failure = told
        if failure is not None:
            raise failure
        found: T = result
        return found

    def _sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        if distributed.get_backend() == "nccl":
            total = total.cuda()
        distributed.all_reduce(total)
        return float(total)


@contextmanager
def join(device: torch.device) -> Iterator[Team]:
    """The team that torchrun made this process a part of; a process started by itself is alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Team()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        waiting = distributed.new_group(backend="gloo", timeout=_EVALUATION_PATIENCE)
        yield Team(distributed.get_rank(), count, waiting)
    finally:
        distributed.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """The one of several equal devices that is this rank's."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        return torch.device(device.type, int(os.environ["LOCAL_RANK"]))
    return device


def refuse_team(command: str) -> None:
    """RecipeError where torchrun has started several processes of a command that is one process's work."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RecipeError(f"`adagp {command}` runs in one process: start it without torchrun, or use `adagp train`")
