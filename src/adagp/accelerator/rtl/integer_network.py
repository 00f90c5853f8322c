"""A network in integers, with the predictor.

The predictor is the paper's without the bias of its convolution: outputs pooled to a grid, a 3 x 3 convolution, ReLU,
and one linear layer with a constant among its inputs. The shifts hold the scale of every number and the learning rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd, prod

import numpy as np

from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.tensors import Convolution


@dataclass(frozen=True)
class Shifts:
    """Bits by which the sums of each product are shifted right.

    Attributes:
        forward: A layer's outputs.
        input_grad: The gradient of its inputs.
        update: A true gradient, before it is subtracted from the weights.
        error: A true gradient, before it is subtracted from the predicted one.
        pool: Sums of outputs, for the predictor.
        hidden: The predictor's convolution.
        predicted: A predicted gradient, to be learned from.
        predicted_update: A predicted gradient, before it is subtracted from the weights.
        hidden_grad: The gradient of the predictor's hidden values.
        learn: The gradients of the predictor's weights, before they are subtracted from them.
    """

    forward: int = 8
    input_grad: int = 8
    update: int = 12
    error: int = 8
    pool: int = 8
    hidden: int = 8
    predicted: int = 8
    predicted_update: int = 12
    hidden_grad: int = 8
    learn: int = 12


@dataclass
class IntegerNetwork:
    """Layers one after the other with ReLU between them, and the predictor; batches change their weights.

    Images of the layer before a linear one are flattened channels last. Rows of a weight are ordered (taps, channels).

    Attributes:
        layers: Sizes of the layers.
        weights: Weights of each layer, (c_out, c_in / groups, height, width).
        convolution: The predictor's, (1, 1, 3, 3).
        last: The predictor's linear layer, (features + 1, longest row).
        grid: Outputs are pooled to grid x grid, by cells that divide them evenly; fewer cells are repeated.
        one: The constant input of the predictor's linear layer.
        shifts: The scales.
        first_input_grad: Whether a BP batch computes the gradient of the first layer's inputs too.
    """

    layers: Sequence[Convolution]
    weights: list[Integers]
    convolution: Integers
    last: Integers
    grid: int = 4
    one: int = 256
    shifts: Shifts = field(default_factory=Shifts)
    first_input_grad: bool = False

    def __post_init__(self) -> None:
        """Refuse layers that do not follow each other."""
        for before, after in pairwise(self.layers):
            if before.c_out * prod(before.out) != after.c_in * prod(after.image) or (
                after.image not in (before.out, (1, 1))
            ):
                raise ValueError(f"{after}: does not take what {before} gives")

    @property
    def features(self) -> int:
        """Inputs of the predictor's linear layer, without the constant."""
        return self.grid * self.grid

    def cells(self, layer: int) -> tuple[int, int]:
        """Cells along both axes to which the outputs of a layer are pooled."""
        high, wide = self.layers[layer].out
        return gcd(high, self.grid), gcd(wide, self.grid)

    def copy(self) -> "IntegerNetwork":
        """A copy whose weights change on their own."""
        weights = [weight.copy() for weight in self.weights]
        return replace(self, weights=weights, convolution=self.convolution.copy(), last=self.last.copy())


def random_network(
    layers: Sequence[Convolution],
    rng: np.random.Generator,
    *,
    grid: int = 4,
    limit: int = 3000,
    shifts: Shifts | None = None,
    first_input_grad: bool = False,
) -> IntegerNetwork:
    """A network with uniformly random weights and predictor."""

    def values(*size: int) -> Integers:
        return rng.integers(-limit, limit, size)

    weights = [values(layer.c_out, layer.c_in // layer.groups, *layer.kernel) for layer in layers]
    longest = max(layer.row for layer in layers)
    return IntegerNetwork(
        layers,
        weights,
        values(1, 1, 3, 3),
        values(grid * grid + 1, longest),
        grid,
        shifts=shifts or Shifts(),
        first_input_grad=first_input_grad,
    )
