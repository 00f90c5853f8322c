"""Which layers take part now: layers may be dropped, and freeze and unfreeze, while training."""

import logging
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from adagp._engine.progress import Progress
from adagp._engine.setup import Setup
from adagp.layers import Coverage, Layer
from adagp.layers.coverage import present_coverage

logger = logging.getLogger("adagp")


def covered_layers(setup: Setup, progress: Progress) -> list[Layer]:
    """The layers that were not dropped."""
    return [layer for layer in setup.layers if not progress.layers[layer.name].dropped]


def active_layers(setup: Setup, progress: Progress) -> list[Layer]:
    """The covered layers that are not frozen now."""
    known = progress.layers
    return [layer for layer in setup.layers if layer.weight.requires_grad and not known[layer.name].dropped]


def parameters_without_source(setup: Setup, progress: Progress) -> Iterator[tuple[str, nn.Parameter]]:
    """The trainable parameters that no source serves now, each with the name of its module.

    They are those of modules that are not covered, of dropped layers, and the biases of frozen weights.
    """
    for module, parameter in setup.uncovered:
        if parameter.requires_grad:
            yield module, parameter
    for layer in setup.layers:
        if progress.layers[layer.name].dropped or not layer.weight.requires_grad:
            for parameter in layer.parameters():
                if parameter.requires_grad:
                    yield layer.name, parameter


def coverage(setup: Setup, progress: Progress) -> Coverage:
    """Which layers are covered at present, which are not, and why."""
    dropped = {name: layer.dropped for name, layer in progress.layers.items() if layer.dropped}
    found = present_coverage(
        setup.model, setup.parameters(), covered_layers(setup, progress), {**setup.reasons, **dropped}
    )
    return replace(found, note=getattr(setup.predictor, "note", ""))


def drop(progress: Progress, layer: Layer, reason: str) -> None:
    """Cover a layer no longer, because a batch showed that its output is never seen."""
    logger.warning("layer %r is not covered: %s", layer.name, reason)
    progress.layers[layer.name].dropped = reason
