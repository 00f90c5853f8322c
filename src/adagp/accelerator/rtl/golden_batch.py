"""The golden model of whole batches, by torch's convolutions, without banks or folds.

The convolutions run in 64-bit floating point, which holds integers exactly up to 2^53. No sum here is larger.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from adagp.accelerator.rtl.golden import Integers, operands, relu, updated
from adagp.accelerator.rtl.integer_network import IntegerBatch, IntegerNetwork
from adagp.accelerator.rtl.lowering import Convolution


def forward_sums(layer: Convolution, images: Integers, weight: Integers) -> Integers:
    """Sums of the forward, (batch, c_out, height, width)."""
    return _exactly(conv2d, _real(images), _real(weight), stride=layer.stride, padding=layer.padding)


def weight_grad_sums(layer: Convolution, images: Integers, grads: Integers) -> Integers:
    """Sums of the weight gradient, (c_out, c_in, height, width)."""
    size = (layer.c_out, layer.c_in, *layer.kernel)
    return _exactly(conv2d_weight, _real(images), size, _real(grads), stride=layer.stride, padding=layer.padding)


def input_grad_sums(layer: Convolution, grads: Integers, weight: Integers) -> Integers:
    """Sums of the input gradient, (batch, c_in, height, width)."""
    size = (len(grads), layer.c_in, *layer.image)
    return _exactly(conv2d_input, size, _real(weight), _real(grads), stride=layer.stride, padding=layer.padding)


def gp_batch(network: IntegerNetwork, batch: IntegerBatch) -> None:
    """Run the forward, and update every layer by its predicted gradient."""
    shift = network.shifts.predicted_update
    for index, layer in enumerate(network.layers):
        pooled = forward(network, batch, index)
        sums = hidden_values(network, pooled) @ network.last[:, : layer.row]
        old = network.weights[index]
        network.weights[index] = updated(old.reshape(layer.c_out, -1), sums, shift).reshape(old.shape)


def forward(network: IntegerNetwork, batch: IntegerBatch, index: int) -> Integers:
    """Compute a layer; returns its pooled outputs."""
    layer, shifts = network.layers[index], network.shifts
    sums = forward_sums(layer, batch.inputs[index], network.weights[index])
    if index == len(network.layers) - 1:
        batch.outputs = operands(sums, shifts.forward)
    else:
        following = network.layers[index + 1]
        batch.inputs[index + 1] = relu(sums, shifts.forward).reshape(-1, following.c_in, *following.image)
    high, wide = layer.out
    grid = 1 if layer.out == (1, 1) else network.grid
    cells = sums.reshape(len(sums), layer.c_out, grid, high // grid, grid, wide // grid).sum((0, 3, 5))
    whole = np.broadcast_to(cells, (layer.c_out, network.grid, network.grid))
    return operands(whole, shifts.pool)[:, None]


def hidden_values(network: IntegerNetwork, pooled: Integers) -> Integers:
    """Inputs of the predictor's linear layer, the constant included."""
    sums = forward_sums(network.predictor_convolution, pooled, network.convolution)
    hidden = relu(sums, network.shifts.hidden).reshape(len(pooled), -1)
    return np.hstack([hidden, np.full((len(pooled), 1), network.one)])


def _real(values: Integers) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).double()


def _exactly(function: Callable[..., Tensor], *arguments: object, **options: int) -> Integers:
    return np.asarray(function(*arguments, **options).round().long().numpy())
