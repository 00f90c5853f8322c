"""The running statistics of batch norms."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def kept_statistics(model: nn.Module) -> Iterator[None]:
    """Inside, batch norms normalise by the batch as in training; their running statistics are put back."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    buffers = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
