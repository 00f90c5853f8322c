"""One covered layer in one batch."""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from adagp.layers import Layer
from adagp.predictors import Features
from adagp.schedules import LayerTask, SourceSpec
from adagp.sources import Source


@dataclass
class LayerBatch:
    """What one layer does in one batch, decided before the forward, and what its passes showed.

    Attributes:
        layer: The layer.
        task: What the plan asks of it.
        spec: What is known of its source.
        source: Supplies its gradient.
        uses_features: Whether its features are used in this batch; the same on all ranks.
        records: Whether the hook records them. A compiled forward records all layers, so that it is compiled once.
        requires_tensor: Whether the layer must return a tensor.
        samples: The number of samples in each micro-batch; empty until the layer has run.
        outputs: The pooled output of each call.
        inputs: The pooled input of each call.
        weighted_inputs: The weighted input of each call.
    """

    layer: Layer
    task: LayerTask
    spec: SourceSpec
    source: Source
    uses_features: bool
    records: bool
    requires_tensor: bool
    samples: list[int] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    weighted_inputs: list[Tensor] = field(default_factory=list)

    @property
    def has_run(self) -> bool:
        """Whether its forward hook was called."""
        return bool(self.samples)

    @property
    def has_gradient(self) -> bool:
        """Whether the optimizer will find a gradient."""
        return self.layer.weight.grad is not None

    def features(self) -> Features | None:
        """What was recorded, over all calls and micro-batches of this rank; None where nothing was.

        Activations are averaged. Weighted inputs add up, as gradients do.
        """
        if not (self.outputs or self.inputs or self.weighted_inputs):
            return None
        return Features(
            output=_mean(self.outputs),
            input=_mean(self.inputs),
            weighted_input=torch.stack(self.weighted_inputs).sum(0) if self.weighted_inputs else None,
        )


def layer_batch(
    layer: Layer, task: LayerTask, source: Source, trained_on: Collection[str], is_compiled: bool
) -> LayerBatch:
    """Decide what the hook of a layer does, before the forward, inside which every step is slow.

    Args:
        layer: The layer.
        task: What the plan asks of it.
        source: The source of its gradient.
        trained_on: The layers that the predictor wants to learn from in this batch.
        is_compiled: Whether the forward is compiled: another choice of layers would be compiled again.
    """
    spec = task.source
    uses_features = (spec.needs_features and source.wants_features(layer.name)) or (
        task.trains_predictor and layer.name in trained_on
    )
    records = uses_features or (is_compiled and (spec.needs_features or task.trains_predictor))
    is_shown = spec.uses_activations and not spec.needs_graph and not spec.needs_features
    requires_tensor = records or is_shown or (task.trains_predictor and bool(trained_on))
    return LayerBatch(layer, task, spec, source, uses_features, records, requires_tensor)


def _mean(parts: list[Tensor]) -> Tensor | None:
    if len(parts) > 1:
        return torch.stack(parts).mean(0)
    return parts[0] if parts else None
