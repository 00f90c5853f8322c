"""Weights whose rows are spread over ranks, as FSDP2 (`fully_shard`) does it: each rank holds some of them.

A layer's rows are the first dimension of its weight, and FSDP2 shards by the first dimension.
"""

import sys
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_distributed(tensor: Tensor | None) -> "TypeGuard[DTensor]":
    """Whether a tensor is spread over ranks, or held by all of them as one."""
    module = sys.modules.get("torch.distributed.tensor")  # without it there is no such tensor: it is slow to import
    return module is not None and isinstance(tensor, module.DTensor)


def own_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; all of one that is not distributed."""
    return tensor.to_local() if is_distributed(tensor) else tensor


def reason_without_rows(weight: Tensor, bias: Tensor | None) -> str:
    """Why a rank's part of a distributed weight is not some of its rows, with the remedy; empty where it is."""
    from torch.distributed.tensor import Replicate, Shard

    assert is_distributed(weight)
    placements = weight.placements
    sharded = [placement for placement in placements if type(placement) is not Replicate]
    if len(sharded) > 1 or any(type(one) is not Shard or one.dim != 0 for one in sharded):
        held = ", ".join(map(str, placements))
        return f"its weight is placed as ({held}), not by rows: shard it by its first dimension with fully_shard"
    if bias is not None and not (is_distributed(bias) and bias.placements == placements):
        return "its bias is not sharded as its weight is: put both into one fully_shard"
    return ""


def own_rows(weight: Tensor) -> slice:
    """Which rows of a distributed weight this rank holds: those that `torch.chunk` gives it."""
    from torch.distributed.tensor import Shard

    assert is_distributed(weight)
    rows = weight.shape[0]
    axis = next((axis for axis, one in enumerate(weight.placements) if isinstance(one, Shard)), None)
    if axis is None:
        return slice(0, rows)
    size = -(-rows // weight.device_mesh.size(axis))
    start = min(size * weight.device_mesh.get_local_rank(axis), rows)
    return slice(start, min(start + size, rows))


def distributed_like(parameter: nn.Parameter, own: Tensor) -> Tensor:
    """A tensor that is distributed as a parameter is, of which this rank holds `own`.

    Its shape may differ from the parameter's in all dimensions but the first.
    """
    from torch.distributed.tensor import DTensor

    assert is_distributed(parameter)
    shape = torch.Size((parameter.shape[0], *own.shape[1:]))
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        own, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=strides
    )
