"""The weight gradient from the largest output gradients."""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from adagp.kernels import topk_weight_grad
from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.sources.registry import supplies
from adagp.sources.source import Source


@supplies("topk")
class TopK(Source):
    """The k largest output gradients per sample and channel stand for all (paper 003, section 2.3).

    The bias gradient is the sum of all of them and stays exact. A loss that contains gradients (`create_graph`) is not
    served: what reaches the weight by the second derivative is left out.
    """

    def __init__(self, k: int = 1, scale: float = 1.0) -> None:
        """Set how many are kept, and a factor for the result.

        Args:
            k: Entries kept per sample and output channel; all of them give the exact gradient.
            scale: The paper multiplies by 1 / batch; a torch loss that averages over the batch has done so already.
        """
        if type(k) is not int or k < 1:
            raise ValueError(f"k = {k}: a whole number of at least one entry per sample and channel must be kept")
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale = {scale}: must be a positive number")
        self._k, self._scale = k, scale

    def options(self) -> str:
        """How many are kept, and the factor."""
        return f"(k={self._k}, scale={self._scale})"

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """What `receive` put into `.grad`."""
        return layer.gradient()

    def refuse(self, layer: Layer) -> str:
        """Only layers that slide one weight over positions can be served, and only if they compute what torch's do."""
        kind = type(layer.module)
        if kind.forward in (nn.Conv2d.forward, nn.Linear.forward):
            return ""
        own = "" if not isinstance(layer.module, nn.Conv2d | nn.Linear) else " with a forward of its own"
        return (
            f"topk serves Conv2d and Linear, and layer {layer.name!r} is {kind.__name__}{own}: give it another source"
        )

    def receive(self, layer: Layer, layer_input: Tensor, grad_output: Tensor) -> None:
        """Add the sparse weight gradient and the exact bias gradient."""
        module = layer.module
        if isinstance(module, nn.Conv2d):
            image, grad_output, options = _convolution(module, layer_input, grad_output)
        else:
            image, grad_output, options = _positions_as_image(layer_input), _positions_as_image(grad_output), {}
        shape = layer.weight.shape if layer.weight.dim() == 4 else (*layer.weight.shape, 1, 1)
        common = torch.promote_types(image.dtype, grad_output.dtype)  # under autocast they differ
        weight = topk_weight_grad(image.to(common), grad_output.to(common), shape, k=self._k, **options)
        bias = None if layer.bias is None else grad_output.sum((0, 2, 3), dtype=weight.dtype)
        layer.add_gradient(weight.mul_(self._scale).view(layer.weight.shape), bias)


def _convolution(module: nn.Conv2d, image: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Input and `grad_output` of a convolution, with a batch and explicit padding, and the convolution's options."""
    if image.dim() == 3:
        image, grad_output = image[None], grad_output[None]
    padding: Any = module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        image, padding = nn.functional.pad(image, module._reversed_padding_repeated_twice, mode), 0
    options = {"stride": module.stride, "padding": padding, "dilation": module.dilation, "groups": module.groups}
    return image, grad_output, options


def _positions_as_image(tensor: Tensor) -> Tensor:
    """`(batch, *positions, features)` as `(batch, features, positions, 1)`, without moving anything."""
    batched = tensor if tensor.dim() > 1 else tensor[None]
    return batched.reshape(len(batched), prod(batched.shape[1:-1]), batched.shape[-1]).transpose(1, 2)[..., None]
