"""Ranks agree: what several processes that train one model must share so that they stay identical.

DistributedDataParallel averages gradients in backward only. Where there is none, every rank must predict the same
rows, so the small features are averaged instead. Where a plan mixes sources, its reducer must expect parameters without
a gradient, and what a source computes from a layer's `grad_output` is averaged too. All of it goes in one message a
batch, which travels during the backward where its content is known before.

FSDP2 spreads the rows of every layer over ranks. Each rank predicts and remembers its own, from the features that all
ranks share, and what is a sum over rows is added up.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from adagp.layers.sharding import is_distributed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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


def refuse_old_sharding(model: nn.Module) -> None:
    """ValueError where parameters are flattened and spread over ranks, so that no rank holds rows of a weight."""
    for name, module in model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ValueError(
                f"module {name!r} is FullyShardedDataParallel, which flattens weights before it spreads them over "
                "ranks, so that a rank holds pieces of rows: use torch.distributed.fsdp.fully_shard (FSDP2), which "
                "spreads rows, or DistributedDataParallel"
            )


class PendingSum:
    """Sums over ranks whose message is on its way."""

    def __init__(self, tensors: Sequence[Tensor], message: Tensor, work: distributed.Work | None) -> None:
        """`message` has all `tensors` and is summed in place; `work` is None where this rank sends nothing."""
        self._tensors, self._message, self._work = tensors, message, work

    def wait(self) -> list[Tensor]:
        """The sum of each tensor."""
        if self._work is not None:
            self._work.wait()
        parts = torch.split(self._message, [tensor.numel() for tensor in self._tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self._tensors, strict=True)]


class Ranks:
    """The processes that train one model together.

    A single one where the model is neither DistributedDataParallel nor sharded by `fully_shard`.
    """

    def __init__(self, model: nn.Module) -> None:
        """The group is that of the wrapped model, or of the mesh that its parameters are spread over."""
        wrapped = model if isinstance(model, DistributedDataParallel) else None
        mesh = None if wrapped is not None else _mesh(model)
        self._wrapped = wrapped
        self._group = None if wrapped is None else wrapped.process_group
        self._row_group: distributed.ProcessGroup | None = None
        self.count = 1 if wrapped is None else distributed.get_world_size(self._group)
        self.replicas = 1
        """On how many ranks the same rows are."""
        if mesh is not None:
            axis = mesh.ndim - 1  # the others replicate
            self._group, self._row_group = _group_of_all(mesh), mesh.get_group(axis)
            self.count, self.replicas = mesh.size(), mesh.size() // mesh.size(axis)
        self.shards_rows = mesh is not None
        """Whether each rank holds some rows of every layer, and no rank all of them."""
        self.mixes_sources = wrapped is None or (wrapped.find_unused_parameters and not wrapped.static_graph)
        """Whether a batch with a backward may leave parameters without a gradient."""
        self.have_parts = False
        """Whether each rank trains another part of the model."""
        self.sent_bytes = 0
        """What this rank gave to messages so far, beside those of torch's own wrappers."""
        self.agreed_shapes: dict[tuple[str, str], torch.Size] = {}
        """The shapes of parts of messages that no rank knows beforehand; they are the same on all ranks."""
        self.repeats_backward = False
        """Whether a batch had several backwards that were all reduced, so that the first does not know of the last."""
        joined = distributed.is_available() and distributed.is_initialized()
        is_alone = wrapped is None and mesh is None
        self._share_nothing = is_alone and joined and distributed.get_world_size() > 1

    @property
    def overlaps(self) -> bool:
        """Whether a message may leave before the backward that begins now: it is taken for the last of its batch.

        The same on all ranks, whose reducers would wait for each other otherwise.
        """
        wrapped = self._wrapped
        return wrapped is not None and wrapped.require_backward_grad_sync and not self.repeats_backward

    def expect_parts(self) -> None:
        """Say that each rank trains another part of the model, so that there is nothing to share."""
        self._share_nothing = False
        self.have_parts = True

    def warn_if_nothing_is_shared(self) -> None:
        """Warn once where there are other ranks that will not stay identical with this one."""
        if self._share_nothing:
            self._share_nothing = False
            logger.warning(
                "the model is not DistributedDataParallel, and not sharded by fully_shard: unless each rank trains "
                "another part of it, the ranks will not stay identical in GP; wrap the model first and give AdaGP the "
                "wrapped one"
            )

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each tensor over all ranks, sent as one message, in the widest of their types."""
        return self.start_sum(tensors).wait() if self.count > 1 and tensors else list(tensors)

    def start_sum(self, tensors: Sequence[Tensor]) -> PendingSum:
        """The same for several ranks, which go on while the message travels."""
        return self._start_sum(tensors, self._group)

    def sum_rows(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over the ranks that hold other rows, sent as one message."""
        if not self.shards_rows or not tensors:
            return list(tensors)
        return self._start_sum(tensors, self._row_group).wait()

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean of each tensor over all ranks, sent as one message."""
        return [total / self.count for total in self.sum(tensors)]

    def largest(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """The largest of each number over all ranks, sent as one message through tensors on `device`."""
        found = torch.tensor(list(numbers), dtype=torch.int64, device=device)
        self.sent_bytes += found.nbytes
        distributed.all_reduce(found, op=distributed.ReduceOp.MAX, group=self._group)
        return [int(number) for number in found.tolist()]

    def _start_sum(self, tensors: Sequence[Tensor], group: distributed.ProcessGroup | None) -> PendingSum:
        message = torch.cat([tensor.flatten() for tensor in tensors])
        self.sent_bytes += message.nbytes
        return PendingSum(tensors, message, distributed.all_reduce(message, group=group, async_op=True))


def reshard(model: nn.Module) -> None:
    """Free the whole weights that a forward without a backward has left: the next forward would use them again."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _mesh(model: nn.Module) -> "DeviceMesh | None":
    """The mesh that all distributed parameters are spread over; its last axis is that of the rows."""
    held = {name: part for name, part in model.named_parameters() if is_distributed(part)}
    if not held:
        return None
    (first, one), *others = held.items()
    differing = next((name for name, part in others if part.device_mesh != one.device_mesh), None)
    if differing is not None:
        raise ValueError(
            f"parameters {first!r} and {differing!r} are spread over different meshes: give fully_shard one mesh for "
            "all modules"
        )
    if one.device_mesh.device_type != one.to_local().device.type:
        raise ValueError(
            f"parameter {first!r} is kept on {one.to_local().device.type} and used on {one.device_mesh.device_type}: "
            "adagp predicts where weights are kept; call fully_shard without CPUOffloadPolicy"
        )
    return one.device_mesh


def _group_of_all(mesh: "DeviceMesh") -> distributed.ProcessGroup | None:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() != distributed.get_world_size():
        raise ValueError(
            f"the parameters are spread over {mesh.size()} of {distributed.get_world_size()} ranks by a mesh of "
            f"{mesh.ndim} axes: let a mesh of several axes have all ranks"
        )
    return distributed.group.WORLD
