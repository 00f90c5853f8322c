"""Ranks agree: what several processes that train one model must share so that they stay identical.

DistributedDataParallel averages gradients in backward only. Where there is none, every rank must predict the same
rows, so the small features are averaged instead, in one message a batch. Where a plan mixes sources, its reducer must
expect parameters without a gradient, and what a source computes from a layer's `grad_output` is averaged here.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("adagp")


def inside_fabric(model: nn.Module) -> nn.Module:
    """What the wrapper of Lightning Fabric calls: DistributedDataParallel, or the user's own module."""
    if isinstance(model, nn.Module) and type(model).__name__ == "_FabricModule":
        inner: nn.Module = model._forward_module  # type: ignore[assignment]
        return inner
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel, so that layers keep the names the user knows."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def refuse_sharded(model: nn.Module) -> None:
    """ValueError where parameters are spread over ranks: a source writes a layer's gradient as a whole."""
    for name, module in model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ValueError(_SHARDED.format(what=f"module {name!r} is FullyShardedDataParallel"))
    for name, parameter in model.named_parameters():
        if type(parameter.data).__module__.startswith("torch.distributed"):
            raise ValueError(_SHARDED.format(what=f"parameter {name!r} is a {type(parameter.data).__name__}"))


_SHARDED = (
    "{what}, of which each rank holds a part: outside of forward and backward no rank has the whole weight, and adagp "
    "writes, remembers and predicts gradients of whole weights. Use DistributedDataParallel, or shard only modules "
    "without Conv and Linear layers and give AdaGP the others"
)


class Ranks:
    """The processes that train one model together; a single one where the model is not DistributedDataParallel."""

    def __init__(self, model: nn.Module) -> None:
        """The group is that of the wrapped model."""
        wrapped = model if isinstance(model, DistributedDataParallel) else None
        self._group = None if wrapped is None else wrapped.process_group
        self.count = 1 if wrapped is None else distributed.get_world_size(self._group)
        self.mixes_sources = wrapped is None or (wrapped.find_unused_parameters and not wrapped.static_graph)
        """Whether a batch with a backward may leave parameters without a gradient."""
        self.have_parts = False
        """Whether each rank trains another part of the model."""
        self.sent_bytes = 0
        """What this rank gave to messages so far, beside those of DistributedDataParallel."""
        joined = distributed.is_available() and distributed.is_initialized()
        self._share_nothing = wrapped is None and joined and distributed.get_world_size() > 1

    def expect_parts(self) -> None:
        """Say that each rank trains another part of the model, so that there is nothing to share."""
        self._share_nothing = False
        self.have_parts = True

    def warn_if_nothing_is_shared(self) -> None:
        """Warn once where there are other ranks that will not stay identical with this one."""
        if self._share_nothing:
            self._share_nothing = False
            logger.warning(
                "the model is not DistributedDataParallel: unless each rank trains another part of it, the ranks will "
                "not stay identical in GP; wrap the model first and give AdaGP the wrapped one"
            )

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean of each tensor over all ranks, sent as one message."""
        if self.count == 1 or not tensors:
            return list(tensors)
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        self.sent_bytes += flat.nbytes
        distributed.all_reduce(flat, group=self._group)
        flat /= self.count
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any rank raised the flag; the ranks talk through tensors on `device`."""
        if self.count == 1:
            return flag
        return self.totals([int(flag)], device)[0] > 0

    def totals(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """The sum of each number over all ranks, sent as one message."""
        if self.count == 1 or not numbers:
            return list(numbers)
        sums = torch.tensor(list(numbers), dtype=torch.int64, device=device)
        self.sent_bytes += sums.nbytes
        distributed.all_reduce(sums, group=self._group)
        return [int(number) for number in sums.tolist()]
