"""Whole batches in whole numbers: what every design must leave behind, by torch's convolutions and no bank or fold.

The convolutions run in 64-bit floating point, which holds whole numbers exactly up to 2^53: more than any sum here.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from adagp.accelerator.rtl.golden import Integers, masked, operands, relu, updated
from adagp.accelerator.rtl.lowering import Convolution
from adagp.accelerator.rtl.network import Batch, Network


def forward_sums(layer: Convolution, images: Integers, weight: Integers) -> Integers:
    """(batch, c_out, height, width)."""
    return _exactly(conv2d, _real(images), _real(weight), stride=layer.stride, padding=layer.padding)


def weight_grad_sums(layer: Convolution, images: Integers, grads: Integers) -> Integers:
    """(c_out, c_in, height, width)."""
    size = (layer.c_out, layer.c_in, *layer.kernel)
    return _exactly(conv2d_weight, _real(images), size, _real(grads), stride=layer.stride, padding=layer.padding)


def input_grad_sums(layer: Convolution, grads: Integers, weight: Integers) -> Integers:
    """(batch, c_in, height, width)."""
    size = (len(grads), layer.c_in, *layer.image)
    return _exactly(conv2d_input, size, _real(weight), _real(grads), stride=layer.stride, padding=layer.padding)


def gp_batch(network: Network, batch: Batch) -> None:
    """Forward, and every layer of the network updated by its predicted gradient."""
    shift = network.shifts.predicted_update
    for index, layer in enumerate(network.layers):
        pooled = _forward(network, batch, index)
        sums = _hidden(network, pooled) @ network.last[:, : layer.row]
        old = network.weights[index]
        network.weights[index] = updated(old.reshape(layer.c_out, -1), sums, shift).reshape(old.shape)


def bp_batch(network: Network, batch: Batch, *, learns: bool) -> None:
    """Forward and backward, every layer updated by its true gradient, from which the predictor may learn."""
    shifts = network.shifts
    for index, layer in enumerate(network.layers):
        batch.pooled[index] = _forward(network, batch, index)
        batch.hidden[index] = _hidden(network, batch.pooled[index])
        batch.predicted[index] = operands(batch.hidden[index] @ network.last[:, : layer.row], shifts.predicted)
    for index in reversed(range(len(network.layers))):
        layer, images, grads = network.layers[index], batch.inputs[index], batch.grads[index]
        if index:
            before = masked(images, input_grad_sums(layer, grads, network.weights[index]), shifts.input_grad)
            previous = network.layers[index - 1]
            batch.grads[index - 1] = before.reshape(-1, previous.c_out, *previous.out)
        sums = weight_grad_sums(layer, images, grads)
        network.weights[index] = updated(network.weights[index], sums, shifts.update)
        if learns:
            error = updated(batch.predicted[index], sums.reshape(layer.c_out, -1), shifts.error)
            _learn(network, batch, index, error)


def _forward(network: Network, batch: Batch, index: int) -> Integers:
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


def _hidden(network: Network, pooled: Integers) -> Integers:
    sums = forward_sums(network.predictor_convolution, pooled, network.convolution)
    hidden = relu(sums, network.shifts.hidden).reshape(len(pooled), -1)
    return np.hstack([hidden, np.full((len(pooled), 1), network.one)])


def _learn(network: Network, batch: Batch, index: int, error: Integers) -> None:
    shifts, hidden, row = network.shifts, batch.hidden[index], network.layers[index].row
    hidden_grad = masked(hidden, error @ network.last[:, :row].T, shifts.hidden_grad)[:, :-1]
    images = hidden_grad.reshape(-1, 1, network.grid, network.grid)
    sums = weight_grad_sums(network.predictor_convolution, batch.pooled[index], images)
    network.last[:, :row] = updated(network.last[:, :row], hidden.T @ error, shifts.learn)
    network.convolution[...] = updated(network.convolution, sums, shifts.learn)


def _real(values: Integers) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).double()


def _exactly(function: Callable[..., Tensor], *arguments: object, **options: int) -> Integers:
    return np.asarray(function(*arguments, **options).round().long().numpy())
