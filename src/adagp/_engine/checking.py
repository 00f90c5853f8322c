"""Refuses losses and true gradients that are not finite, before anything is updated."""

import logging
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NoReturn

from torch import nn

from adagp._engine import finite
from adagp._engine.layer_batch import LayerBatch
from adagp._engine.learning import sums_of_all_rows
from adagp._engine.open_batch import OpenBatch

logger = logging.getLogger("adagp")


def refuse_nonfinite_loss(batch: OpenBatch) -> None:
    """Raise where the loss of a batch with true gradients is not finite."""
    if not batch.loss_is_finite:
        raise finite.NonFiniteError(
            f"the loss is not finite at step {batch.step_index} ({batch.plan.phase.value}): lower the learning rate, "
            "clip gradients, or resume from the last checkpoint"
        )


def checks_gradients(batch: OpenBatch) -> bool | None:
    """Whether true gradients are checked; None while that is not decided."""
    chosen = batch.setup.options.stop_on_nonfinite
    return batch.progress.checks_finite if chosen is None else chosen


def first_broken(
    batch: OpenBatch, squares: Mapping[str, tuple[float, ...]], supplied: Sequence[LayerBatch]
) -> nn.Parameter | None:
    """The first parameter whose true gradient is not finite, as far as they are checked.

    A GradScaler skips such a step by itself. So may another library, if it ran the backward.

    Args:
        batch: The batch.
        squares: The sums of squares of the layers in which these are known.
        supplied: The layers whose gradients are checked already, because a source gave them.
    """
    parameters = batch.setup.parameters()
    if checks_gradients(batch) is None and batch.forward.macs:
        _decide(batch, parameters)
    if checks_gradients(batch) is False or not batch.ran_own_backward or batch.scaling.is_enabled:
        return None
    known = [entry for name, entry in batch.layers.items() if name in squares]
    checked: Collection[int]
    if len(known) == len(batch.setup.layers):
        checked = batch.setup.covered_ids
    else:
        checked = {id(parameter) for entry in (*known, *supplied) for parameter in entry.layer.parameters()}
    doubtful = [part for entry in known if inf in squares[entry.layer.name] for part in entry.layer.parameters()]
    return finite.first_broken(doubtful, [part for part in parameters if id(part) not in checked])


def _decide(batch: OpenBatch, parameters: Sequence[nn.Parameter]) -> None:
    batch.progress.checks_finite = finite.is_cheap(batch.forward.macs, parameters)
    if not batch.progress.checks_finite:
        logger.info(
            "true gradients are not checked for NaN and infinity: that would take more than 1 %% of a batch; "
            "stop_on_nonfinite=True checks them all the same"
        )


def check_row_sums(batch: OpenBatch, sums: Sequence[float]) -> dict[str, tuple[float, ...]]:
    """The sums of squares over all rows of each layer; a gradient that is not finite raises on all ranks."""
    is_broken, *rest = sums
    squares = sums_of_all_rows(batch.layers.values(), rest)
    if is_broken:
        layer = next((f"the weight of layer {name!r}" for name, values in squares.items() if inf in values), None)
        refuse_gradient(batch, layer or "a parameter that belongs to no covered layer")
    return squares


def refuse_gradient(batch: OpenBatch, of_what: str) -> NoReturn:
    """Raise before anything is updated."""
    batch.progress.count("nonfinite")
    raise finite.NonFiniteError(
        f"the gradient of {of_what} is not finite at step {batch.step_index} ({batch.plan.phase.value}) although the "
        "loss is, and nothing was updated: lower the learning rate, clip gradients, or resume from the last "
        "checkpoint (stop_on_nonfinite=False applies it)"
    )
