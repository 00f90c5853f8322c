"""One bit an entry in place of what ReLU and dropout keep for the backward.

ReLU keeps its output, of which the backward asks only where it is positive. Dropout on a CPU keeps a mask of floating
point numbers. Both gradients stay what they were, bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from adagp._engine.capture.pooling import is_block

_BITS = 8


@dataclass(frozen=True)
class Packed:
    """A mask of eight entries a byte, in the order of its memory, and the form of the tensor that it stands for."""

    bits: Tensor
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


def masking_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The ReLU and dropout modules that compute what torch's do."""
    known = {nn.ReLU.forward, nn.Dropout.forward}
    return (module for module in model.modules() if type(module).forward in known)


def keep_mask(module: nn.Module, output: Any) -> None:
    """Let the graph keep a mask for this call of the module, where it keeps more now."""
    if not isinstance(output, Tensor) or not output.numel():
        return
    if isinstance(module, nn.Dropout):
        if not module.training or not 0 < module.p < 1:  # then it returns its input, with the graph of another module
            return
        kept, kept_share = getattr(output.grad_fn, "_raw_saved_other", None), 1 - module.p
    else:
        kept, kept_share = getattr(output.grad_fn, "_raw_saved_result", None), 1.0
    if kept is not None:
        try:
            kept.register_hooks(pack, partial(unpack, kept_share=kept_share))
        except RuntimeError:  # activation checkpointing, or another hook of the user's, has taken it already
            return


@torch.no_grad()
def pack(tensor: Tensor) -> Packed:
    """Where a tensor is not 0 or less; NaN is not, and ReLU lets its gradient through."""
    if not is_block(tensor.shape, tensor.stride()):
        tensor = tensor.contiguous()
    flat = tensor.as_strided((tensor.numel(),), (1,))
    mask = flat.new_zeros(-(-len(flat) // _BITS) * _BITS, dtype=torch.bool)
    torch.logical_not(torch.le(flat, 0), out=mask[: len(flat)])
    weighted = mask.view(torch.uint8).view(-1, _BITS).mul_(_weights(tensor.device))
    return Packed(weighted.sum(1, dtype=torch.uint8), tensor.dtype, tensor.shape, tensor.stride())


@torch.no_grad()
def unpack(packed: Packed, kept_share: float = 1.0) -> Tensor:
    """1 / `kept_share` where the mask is set, and 0 elsewhere."""
    entries = prod(packed.shape)
    mask = packed.bits[:, None].bitwise_and(_weights(packed.bits.device)).ne_(0).view(-1)[:entries]
    values = mask.to(packed.dtype).as_strided(packed.shape, packed.stride)
    return values if kept_share == 1 else values.div_(kept_share)


def _weights(device: torch.device) -> Tensor:
    return torch.tensor([1 << bit for bit in range(_BITS)], dtype=torch.uint8, device=device)
