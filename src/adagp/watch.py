"""What the forward of a batch shows to the predictor, and when the predictor looks at it."""

from functools import partial

import torch
from torch import Tensor

from adagp.attachment import Attachment
from adagp.layers import Layer
from adagp.predictor import Glance, Seen

_GLANCES_SHARE = 1 / 16
"""Of the largest output so far: how much memory glances may take before the predictor reduces them."""


class Watch:
    """The hooks of a batch glance at outputs one by one; the predictor looks at the glances several at once."""

    def __init__(self, attached: Attachment) -> None:
        """Nothing is seen before the first forward."""
        self._attached = attached
        self._glances: list[tuple[Layer, Glance]] = []
        self._glanced_bytes = self._largest_output = 0
        self.seen: dict[str, list[Seen]] = {}
        """Of each layer: what the predictor saw, call by call."""

    def glance(self, layer: Layer, output: Tensor) -> None:
        """Let the predictor glance at an output, and see what it glanced at before that takes noticeable memory."""
        attached = self._attached
        assert attached.predictor is not None
        glance = attached.timed(partial(attached.predictor.glance, layer, output))
        if torch.compiler.is_compiling():  # it arranges the work itself
            self._glances.append((layer, glance))
            self._look()
            return
        self._largest_output = max(self._largest_output, output.nbytes)
        if self._glanced_bytes + glance.nbytes > self._largest_output * _GLANCES_SHARE:
            self._look()
        self._glances.append((layer, glance))
        self._glanced_bytes += glance.nbytes
        if attached.immediate or not glance.is_copy or self._glanced_bytes > self._largest_output * _GLANCES_SHARE:
            self._look()

    def end_forward(self) -> None:
        """Look at what is left."""
        self._look()
        self._largest_output = 0

    def _look(self) -> None:
        """Let the predictor see what it glanced at."""
        attached = self._attached
        if not self._glances:
            return
        assert attached.predictor is not None
        seen = attached.timed(partial(attached.predictor.see, self._glances))
        for (layer, _), one in zip(self._glances, seen, strict=True):
            self.seen.setdefault(layer.name, []).append(one)
        self._glances, self._glanced_bytes = [], 0
