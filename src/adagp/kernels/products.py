"""Matrix products on CPUs by oneDNN, which some processors run twice as fast as what torch multiplies with.

Torch multiplies with MKL, which uses 32-byte vectors on processors of other makers, also where they have longer ones.
Torch brings oneDNN too, for its convolutions.
"""

from functools import cache

import torch
from torch import Tensor

LEAST_WORK = 1 << 27
"""Multiply-adds from which on it pays: oneDNN takes half a millisecond to prepare each new shape."""


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`."""
    return _by_onednn(left, right) if _pays(left, right) else left @ right


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to `total`."""
    if _pays(left, right):
        total.add_(_by_onednn(left, right))
    else:
        total.addmm_(left, right)


def _pays(left: Tensor, right: Tensor) -> bool:
    work = left.shape[0] * left.shape[1] * right.shape[1]
    return work >= LEAST_WORK and left.device.type == "cpu" and left.dtype == torch.float32 and _has_onednn()


@cache
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")
    return found
