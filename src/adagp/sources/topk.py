"""The weight gradient from the largest output gradients."""

from torch import Tensor, nn

from adagp.kernels import topk_weight_grad
from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.sources.as_convolution import as_convolution
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
        seen = as_convolution(layer, layer_input, grad_output)
        weight = topk_weight_grad(seen.image, seen.grad_output, seen.weight_shape, k=self._k, **seen.options)
        bias = None if layer.bias is None else seen.grad_output.sum((0, 2, 3), dtype=weight.dtype)
        layer.add_gradient(weight.mul_(self._scale).view(layer.weight.shape), bias)
