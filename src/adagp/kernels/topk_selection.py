"""Selection and scaling of the kept output gradients, in plain torch."""

import torch
from torch import Tensor

CANCELLED = 10
"""The kept entries cancel if their sum is this many times smaller than the sum of their magnitudes."""


def select(grad_output: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Per sample and channel, the k positions of largest magnitude and values whose sum is the channel's.

    The kept values are scaled by true sum / kept sum. If they cancel (see `CANCELLED`) that factor would explode, so
    the missing sum is divided equally among them instead. Ties go to the first position, so that every kernel keeps the
    same entries.

    Returns:
        Positions and values, each `(samples, channels, kept)`; positions count row by row.
    """
    flat = grad_output.flatten(2)  # (samples, channels, positions)
    if k == 1:
        return flat.abs().argmax(dim=2, keepdim=True), flat.sum(dim=2, keepdim=True)
    if k >= flat.shape[2]:
        return torch.arange(flat.shape[2], device=flat.device).expand_as(flat), flat
    order = flat.abs().argsort(dim=2, descending=True, stable=True)[:, :, :k]
    kept = flat.gather(2, order)
    total, kept_sum = flat.sum(dim=2, keepdim=True), kept.sum(dim=2, keepdim=True)
    cancelled = CANCELLED * kept_sum.abs() <= kept.abs().sum(dim=2, keepdim=True)
    factor = total / kept_sum.masked_fill(cancelled, 1)
    return order, (kept + (total - kept_sum) / k).where(cancelled, kept * factor)
