"""Lets a source write the gradients of its layers."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from adagp._engine.finite import is_finite, suspects
from adagp.layers import Layer, Rows
from adagp.sources import GradientRequest, Predicted, Source

logger = logging.getLogger("adagp")


def write_gradients(
    source: Source, requests: Sequence[GradientRequest], timed: Callable[[Callable[[], None]], Any], step: int
) -> bool:
    """Put what a source gives into the `.grad` of these layers.

    Args:
        source: The source.
        requests: What is asked of it, layer by layer.
        timed: Does the predictor's work on its clock.
        step: The batch's step, for messages.

    Returns:
        Whether all of it is finite. If not, nothing of it is left.
    """
    if source.spec.needs_forward:  # where the forward did not come by, there is nothing to give
        for request in requests:
            request.layer.assign(None)
        requests = [request for request in requests if request.samples]

    def write() -> None:
        for request, rows in zip(requests, source.gradients(requests), strict=True):
            _refuse_rows(source, request.layer, rows)
            request.layer.assign(rows)

    if source.spec.needs_features and requests:
        timed(write)
    else:
        write()
    doubtful = [request.layer for request in requests if not is_always_finite(source, request.layer)]
    if not doubtful or _all_finite(source, doubtful, step):
        return True
    for request in requests:
        request.layer.assign(None)
    return False


def is_always_finite(source: Source, layer: Layer) -> bool:
    """Whether a source promises finite rows; what its base promised does not count: it may compute something else."""
    if type(source) is Predicted:
        return source.is_always_finite(layer.name)
    return bool(vars(type(source)).get("always_finite", False))


def _refuse_rows(source: Source, layer: Layer, rows: object) -> None:
    """What a source gave must have the form of the layer's gradient; torch would stretch some other forms to fit."""
    if rows is None:
        return
    where = f"layer {layer.name!r}: source {source.spec.name!r}"
    if not isinstance(rows, Rows):
        raise TypeError(f"{where} gave a {type(rows).__name__}: give adagp.layers.Rows(weight, bias), or None")
    if rows.weight.shape != (layer.own_out, layer.fan_in):
        raise ValueError(
            f"{where} gave a weight of shape {tuple(rows.weight.shape)}; expected {(layer.own_out, layer.fan_in)}, a "
            "row for each output unit"
        )
    if rows.bias is not None and rows.bias.shape != (layer.own_out, 1):
        raise ValueError(
            f"{where} gave a bias of shape {tuple(rows.bias.shape)}; expected {(layer.own_out, 1)}, or None"
        )


def _all_finite(source: Source, layers: Sequence[Layer], step: int) -> bool:
    given = [(layer, part.grad) for layer in layers for part in layer.parameters() if part.grad is not None]
    broken = [given[index] for index in suspects([grad for _, grad in given])]
    name = next((layer.name for layer, grad in broken if not is_finite(grad)), None)
    if name is None:
        return True
    what = "prediction" if source.spec.needs_features else f"gradient from {source.spec.name!r}"
    logger.warning("step %d: the %s for layer %r is not finite", step, what, name)
    return False
