"""Measures how the gradient of smaller samples agrees with that of the same samples at full size."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adagp._engine.setup import Setup
from adagp._engine.statistics import kept_statistics
from adagp.schedules.plan import Probe


def probe(setup: Setup, loss: float, scales: Sequence[float], loss_at: Callable[[float], Tensor]) -> Probe:
    """Compare the gradients at some scales with the one in `.grad`; nothing else is changed.

    Args:
        setup: The set-up.
        loss: The loss of the full batch.
        scales: The scales to compare.
        loss_at: Computes the loss of the batch at a scale.
    """
    parameters = [part for part in setup.parameters() if part.grad is not None and not part.grad.is_sparse]
    full = [part.grad for part in parameters if part.grad is not None]
    cosines = {}
    for scale in scales:
        with kept_statistics(setup.model), torch.random.fork_rng(), _unsynchronised(setup.given_model):
            found = torch.autograd.grad(loss_at(scale), parameters, allow_unused=True)
        grads = [torch.zeros_like(part) if grad is None else grad for part, grad in zip(parameters, found, strict=True)]
        cosines[scale] = _cosine(setup.ranks.average(grads), full)
    (mean,) = setup.ranks.average([torch.tensor([loss], device=setup.device)])
    return Probe(loss=float(mean), cosines=cosines)


def _cosine(one: Sequence[Tensor], two: Sequence[Tensor]) -> float:
    dot = sum(float((a.float() * b.float()).sum()) for a, b in zip(one, two, strict=True))
    squares = [sum(float(part.float().square().sum()) for part in side) for side in (one, two)]
    scale = (squares[0] * squares[1]) ** 0.5
    return dot / scale if scale > 0 else 0.0


def _unsynchronised(model: nn.Module) -> AbstractContextManager[object]:
    """DistributedDataParallel must not expect this backward: the gradients are averaged here."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
