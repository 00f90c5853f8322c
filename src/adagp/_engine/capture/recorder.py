"""Records what the forward of a batch shows to the predictor."""

from functools import partial

import torch
from torch import Tensor

from adagp._engine.attachment import Attachment
from adagp.layers import Layer
from adagp.predictors import BatchSum, Features

_SUMS_SHARE = 1 / 16
"""Memory that sums may take before they are pooled, as a share of the largest output so far."""


class ActivationRecorder:
    """Sums the outputs of a batch in its forward hooks, one by one, and pools several sums at once."""

    def __init__(self, attached: Attachment) -> None:
        """Nothing is recorded before the first forward."""
        self._attached = attached
        self._sums: list[tuple[Layer, BatchSum]] = []
        self._sums_bytes = self._largest_output = 0
        self.features: dict[str, list[Features]] = {}
        """The features of each layer, call by call."""

    def record(self, layer: Layer, output: Tensor) -> None:
        """Sum an output, and pool the sums so far where they would take noticeable memory."""
        attached = self._attached
        assert attached.predictor is not None
        batch_sum = attached.timed(partial(attached.predictor.summarize, layer, output))
        if torch.compiler.is_compiling():  # it arranges the work itself
            self._sums.append((layer, batch_sum))
            self._pool()
            return
        self._largest_output = max(self._largest_output, output.nbytes)
        if self._sums_bytes + batch_sum.nbytes > self._largest_output * _SUMS_SHARE:
            self._pool()
        self._sums.append((layer, batch_sum))
        self._sums_bytes += batch_sum.nbytes
        if attached.immediate or not batch_sum.is_copy or self._sums_bytes > self._largest_output * _SUMS_SHARE:
            self._pool()

    def end_forward(self) -> None:
        """Pool what is left."""
        self._pool()
        self._largest_output = 0

    def _pool(self) -> None:
        attached = self._attached
        if not self._sums:
            return
        assert attached.predictor is not None
        pooled = attached.timed(partial(attached.predictor.pool, self._sums))
        for (layer, _), features in zip(self._sums, pooled, strict=True):
            self.features.setdefault(layer.name, []).append(features)
        self._sums, self._sums_bytes = [], 0
