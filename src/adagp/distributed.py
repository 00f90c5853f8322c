"""Ranks agree: what several processes that train one model must share so that they stay identical.

DistributedDataParallel averages gradients in backward only. Where there is none, every rank must predict the same
rows, so the small pooled outputs are averaged instead, in one message a batch.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("adagp")


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel, so that layers keep the names the user knows."""
    return model.module if isinstance(model, DistributedDataParallel) else model


class Ranks:
    """The processes that train one model together; a single one where the model is not DistributedDataParallel."""

    def __init__(self, model: nn.Module) -> None:
        """The group is that of the wrapped model."""
        self._group = model.process_group if isinstance(model, DistributedDataParallel) else None
        self.count = 1 if self._group is None else distributed.get_world_size(self._group)
        if self._group is None and distributed.is_available() and distributed.is_initialized():
            logger.warning("the model is not DistributedDataParallel: its ranks will not stay identical in GP")

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean of each tensor over all ranks, sent as one message."""
        if self.count == 1 or not tensors:
            return list(tensors)
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat, group=self._group)
        flat /= self.count
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any rank raised the flag; the ranks talk through tensors on `device`."""
        if self.count == 1:
            return flag
        raised = torch.tensor(float(flag), device=device)
        distributed.all_reduce(raised, op=distributed.ReduceOp.MAX, group=self._group)
        return bool(raised)

    def totals(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """The sum of each number over all ranks, sent as one message."""
        if self.count == 1 or not numbers:
            return list(numbers)
        sums = torch.tensor(list(numbers), device=device)
        distributed.all_reduce(sums, group=self._group)
        return [int(number) for number in sums.tolist()]
