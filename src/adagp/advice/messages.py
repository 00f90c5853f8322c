"""What the ranks of a training send each other in a batch, and one clock for all of them.

Every rank must do the same batches in the same order, or the others wait for its messages. All decisions come
from the clock, so all ranks read that of the first. Reading it also waits for the slowest rank, as a batch does.
"""

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from adagp.advice.estimate import Estimate
from adagp.advice.rounds import Clock

T = TypeVar("T")
SILENT = "without messages"
"""A batch whose gradients stay on their ranks: what it saves is the time of the messages."""


@dataclass(frozen=True)
class MessagesFinding:
    """The messages of a batch by backpropagation.

    Attributes:
        ranks: The number of processes.
        sent_bytes: Gradients and buffers of a rank that the others need.
        seconds: What messages add to a batch; what runs beside the backward adds nothing.
        without: How much faster a batch without messages is.
    """

    ranks: int
    sent_bytes: int
    seconds: float
    without: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "without": self.without.to_dict()}


def gradient_bytes(model: nn.Module) -> int:
    """The gradients that `DistributedDataParallel` sends in a backward."""
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def buffer_bytes(model: nn.Module) -> int:
    """The buffers that the first rank sends before a forward."""
    sends = isinstance(model, DistributedDataParallel) and model.broadcast_buffers
    return sum(buffer.nbytes for buffer in model.buffers()) if sends else 0


class SharedClock:
    """The clock of the first rank, on every rank."""

    def __init__(self, own: Clock, model: DistributedDataParallel) -> None:
        """`own` is the clock of this rank."""
        self.own, self._group = own, model.process_group
        self.without_messages = model.no_sync
        self._device = next(model.parameters()).device
        self.count = distributed.get_world_size(self._group)

    def __call__(self) -> float:
        """The same seconds on every rank; it waits for all of them."""
        distributed.barrier(group=self._group)  # a broadcast alone would let the first rank run ahead
        now = torch.tensor(self.own(), dtype=torch.float64, device=self._device)
        distributed.broadcast(now, group=self._group, group_src=0)
        return float(now)

    def same(self, value: T) -> T:
        """The value of the first rank."""
        values: list[Any] = [value]
        distributed.broadcast_object_list(values, group=self._group, group_src=0)
        answer: T = values[0]
        return answer


def shared_clock(model: object, clock: Clock) -> Clock:
    """The clock to measure a model by."""
    if isinstance(model, DistributedDataParallel) and distributed.get_world_size(model.process_group) > 1:
        return SharedClock(clock, model)
    return clock


def own_clock(clock: Clock) -> Clock:
    """The clock of this rank alone, for work without messages."""
    return clock.own if isinstance(clock, SharedClock) else clock


def same_on_all(clock: Clock, value: T) -> T:
    """The first rank's value of what every rank measured for itself."""
    return clock.same(value) if isinstance(clock, SharedClock) else value
