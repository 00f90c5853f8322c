"""What the ranks of a batch tell each other, so that all of them hold the same gradients.

With one rank nothing is sent.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from adagp._engine.layer_batch import LayerBatch
from adagp._engine.setup import Setup
from adagp.predictors import Features
from adagp.schedules import Trial


def average_received(setup: Setup, layers: Iterable[LayerBatch]) -> None:
    """Average what sources made of a layer's `grad_output`: the reducer knows nothing of it."""
    if setup.ranks.count == 1:
        return
    parameters = [part for entry in layers if entry.spec.needs_grad_output for part in entry.layer.parameters()]
    reached = setup.ranks.totals([parameter.grad is not None for parameter in parameters], setup.device)
    served = [parameter for parameter, ranks in zip(parameters, reached, strict=True) if ranks]
    grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in served]
    for parameter, grad, mean in zip(served, grads, setup.ranks.average(grads), strict=True):
        parameter.grad = grad.copy_(mean)


def agree_on_events(
    setup: Setup, layers: Sequence[LayerBatch], failed: bool, lacks_loss_grad: bool
) -> tuple[bool, bool]:
    """Whether the batch failed on any rank, and whether any lacks the gradient of the loss.

    The same message makes sure that no layer ran on some ranks only: it would be recorded, learned from and dropped
    on those alone.
    """
    if setup.ranks.count == 1:
        return failed, lacks_loss_grad
    asks = [lacks_loss_grad] if setup.needs.needs_loss_grad else []
    events = [failed, *(entry.has_run for entry in layers), *asks]
    failures, *ran = setup.ranks.totals([int(event) for event in events], setup.device)
    lacking = ran.pop() if asks else 0
    for entry, ranks in zip(layers, ran, strict=True):
        if 0 < ranks < setup.ranks.count:
            raise RuntimeError(
                f"layer {entry.layer.name!r} ran on {ranks} of {setup.ranks.count} ranks in this batch, and all must "
                "do the same with it: exclude it, or let it run everywhere"
            )
    return failures > 0, lacking > 0


def average_features(
    setup: Setup, layers: Iterable[LayerBatch], loss_grad: Tensor | None = None
) -> dict[str, Features]:
    """The features of each layer over all ranks, in one message.

    Args:
        setup: The set-up.
        layers: Those whose features are used; a rank that is compiled records more layers than another.
        loss_grad: The gradient of the loss at the model's output, on this rank.
    """
    found = {entry.layer.name: entry.features() for entry in layers if entry.uses_features}
    recorded = {name: features for name, features in found.items() if features is not None}
    own = [] if loss_grad is None else [loss_grad]
    parts = [part for features in recorded.values() for part in features if part is not None]
    averaged = iter(setup.ranks.average(own + parts))
    shared_grad = next(averaged) if own else None
    return {
        name: Features(*(None if part is None else next(averaged) for part in features))._replace(
            loss_grad=shared_grad if setup.needs.loss_grad else None
        )
        for name, features in recorded.items()
    }


def average_trials(setup: Setup, trials: Mapping[str, Trial]) -> dict[str, Trial]:
    """What was tried, as the mean over all ranks, so that all of them decide the same."""
    if setup.ranks.count == 1:
        return dict(trials)

    def numbers(trial: Trial) -> list[float]:
        spread = [] if trial.spread is None else [trial.spread]
        return [trial.other_seconds, trial.exact_seconds, *trial.seconds.values(), *trial.added.values(), *spread]

    own = [torch.tensor(numbers(trial), dtype=torch.float32, device=setup.device) for trial in trials.values()]
    averaged: dict[str, Trial] = {}
    for (name, trial), mean in zip(trials.items(), setup.ranks.average(own), strict=True):
        other, exact, *rest = mean.tolist()
        rates = list(trial.seconds)
        spread = None if trial.spread is None else rest[-1]
        seconds, added = rest[: len(rates)], rest[len(rates) : 2 * len(rates)]
        averaged[name] = Trial(
            other, exact, dict(zip(rates, seconds, strict=True)), dict(zip(rates, added, strict=True)), spread
        )
    return averaged


def total_samples(setup: Setup, layers: Iterable[LayerBatch]) -> dict[str, int]:
    """How many samples went through each layer whose source wants to know, over all micro-batches."""
    asking = [entry for entry in layers if entry.spec.needs_forward]
    totals = setup.ranks.totals([sum(entry.samples) for entry in asking], setup.device)
    return {entry.layer.name: total for entry, total in zip(asking, totals, strict=True)}
