"""The forward hook of a covered layer."""

from typing import Any

import torch
from torch import Tensor, nn

from adagp.attachment import Attachment
from adagp.layers import Layer


class Hook:
    """The forward hook of one layer. Copies of the model (deepcopy, pickle) carry it along without effect."""

    def __init__(self, attached: Attachment, layer: Layer) -> None:
        """Serve the batch that is open, if any."""
        self._attached, self._layer = attached, layer

    def __call__(self, module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> Tensor | None:
        """Show the output to the open batch; what is returned takes its place."""
        if self._attached.open_batch is not None and module is self._layer.module:
            if torch.compiler.is_compiling():
                self._attached.is_compiled = True
            return self._attached.open_batch.see(self._layer, inputs[0] if inputs else named.get("input"), output)
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hook":
        return self

    def __reduce__(self) -> tuple[type["_NoHook"], tuple[()]]:
        return _NoHook, ()


class _NoHook:
    """What a `Hook` becomes in a pickled model."""

    def __call__(self, module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> None:
        """Do nothing."""
