"""A small network in integers, and the data kept outside the chip while a batch of it runs.

The predictor is the paper's without the bias of its convolution: outputs pooled to a grid, a 3 x 3 convolution, ReLU,
and one linear layer with a constant among its inputs. The shifts hold the scale of every number and the learning rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.lowering import Convolution, Numbers


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

    Attributes:
        layers: Sizes of the layers.
        weights: Weights of each layer, (c_out, c_in, height, width).
        convolution: The predictor's, (1, 1, 3, 3).
        last: The predictor's linear layer, (features + 1, longest row).
        grid: Outputs are pooled to grid x grid; an output of one pixel is repeated.
        one: The constant input of the predictor's linear layer.
        shifts: The scales.
    """

    layers: Sequence[Convolution]
    weights: list[Integers]
    convolution: Integers
    last: Integers
    grid: int = 2
    one: int = 256
    shifts: Shifts = field(default_factory=Shifts)

    def __post_init__(self) -> None:
        """Refuse outputs that whole cells do not cover."""
        for layer in self.layers:
            if layer.out != (1, 1) and any(size % self.grid for size in layer.out):
                raise ValueError(
                    f"grid={self.grid}: does not divide an output of {layer.out[0]}x{layer.out[1]}; choose another grid"
                )

    @property
    def features(self) -> int:
        """Inputs of the predictor's linear layer, without the constant."""
        return self.grid * self.grid

    @property
    def predictor_convolution(self) -> Convolution:
        """The predictor's convolution over a layer's pooled outputs; the layer's filters are its batch."""
        return Convolution(1, 1, (self.grid, self.grid), (3, 3), padding=1)

    def cells(self, layer: int, batch: int) -> tuple[Integers, int]:
        """The rows of a layer's forward in the order of the grid's cells, and the number of rows per cell."""
        high, wide = self.layers[layer].out
        grid = 1 if (high, wide) == (1, 1) else self.grid
        rows = np.arange(batch * high * wide).reshape(batch, grid, high // grid, grid, wide // grid)
        return rows.transpose(1, 3, 0, 2, 4).reshape(-1), rows.size // (grid * grid)

    def repeated(self, pooled: Numbers) -> Numbers:
        """(cells, filters) to (filters, 1, grid, grid)."""
        whole = np.broadcast_to(pooled, (self.features, pooled.shape[1])) if len(pooled) == 1 else pooled
        return whole.T.reshape(-1, 1, self.grid, self.grid)


@dataclass
class IntegerBatch:
    """One batch in progress. Dictionaries are keyed by the layer's index.

    Attributes:
        inputs: Images of each layer; the first is given.
        outputs: Outputs of the last layer.
        pooled: Outputs pooled to the grid, (filters, 1, grid, grid).
        hidden: The predictor's hidden values and the constant, (filters, features + 1).
        predicted: Rows of the gradient, (filters, row).
        error: Predicted rows minus true rows.
        grads: Gradients of each layer's outputs, as images; for a BP batch the last is given.
    """

    inputs: dict[int, Integers]
    outputs: Integers | None = None
    pooled: dict[int, Integers] = field(default_factory=dict)
    hidden: dict[int, Integers] = field(default_factory=dict)
    predicted: dict[int, Integers] = field(default_factory=dict)
    error: dict[int, Integers] = field(default_factory=dict)
    grads: dict[int, Integers] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.inputs[0])
