"""The golden model of whole batches, by torch's convolutions, without banks, folds or tiles.

The convolutions run in 64-bit floating point, which holds integers exactly up to 2^53. No sum here is larger.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from adagp.accelerator.rtl.golden import Integers, masked, operands, relu, updated
from adagp.accelerator.rtl.integer_network import IntegerNetwork
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.shapes import Pass

Numbers = NDArray[Any]
_PREDICTOR = Convolution(1, 1, (3, 3), (3, 3), padding=(1, 1))


def pass_sums(layer: Convolution, which: Pass, images: Numbers, weight: Numbers, grads: Numbers) -> Numbers:
    """Sums of a pass in 64-bit floating point; the tensor that the pass computes is only asked for its size."""
    options: dict[str, Any] = {
        "stride": layer.stride,
        "padding": layer.padding,
        "dilation": layer.dilation,
        "groups": layer.groups,
    }
    match which:
        case Pass.FORWARD:
            found = conv2d(_real(images), _real(weight), **options)
        case Pass.INPUT_GRAD:
            found = conv2d_input(images.shape, _real(weight), _real(grads), **options)
        case Pass.WEIGHT_GRAD:
            found = conv2d_weight(_real(images), weight.shape, _real(grads), **options)
    return np.asarray(found.numpy())


def integer_sums(layer: Convolution, which: Pass, images: Integers, weight: Integers, grads: Integers) -> Integers:
    """Sums of a pass of integers."""
    return np.asarray(np.rint(pass_sums(layer, which, images, weight, grads)), dtype=np.int64)


@dataclass(frozen=True)
class Forward:
    """What a forward leaves behind.

    Attributes:
        inputs: Images of each layer.
        outputs: Outputs of the last layer.
        pooled: Pooled outputs of each layer, (filters, 1, grid, grid).
    """

    inputs: list[Integers]
    outputs: Integers
    pooled: list[Integers]


def forward(network: IntegerNetwork, images: Integers) -> Forward:
    """The forward of all layers."""
    inputs, pooled, outputs = [images], [], images
    for index, layer in enumerate(network.layers):
        sums = _forward_sums(layer, inputs[-1], network.weights[index])
        pooled.append(pooled_sums(network, index, sums))
        if index == len(network.layers) - 1:
            outputs = operands(sums, network.shifts.forward)
        else:
            following = network.layers[index + 1]
            inputs.append(_follow(relu(sums, network.shifts.forward), following))
    return Forward(inputs, outputs, pooled)


def gp_batch(network: IntegerNetwork, images: Integers) -> Forward:
    """Run the forward, and update every layer by its predicted gradient."""
    done = forward(network, images)
    for index, layer in enumerate(network.layers):
        sums = hidden_values(network, done.pooled[index]) @ network.last[:, : layer.row]
        old = _rows(network.weights[index])
        network.weights[index] = _weight(updated(old, sums, network.shifts.predicted_update), layer)
    return done


def bp_batch(network: IntegerNetwork, images: Integers, grads: Integers, *, learns: bool) -> tuple[Forward, Integers]:
    """Run forward and backward; every layer is updated by its true gradient, from which the predictor may learn.

    Returns what the forward left behind, and the gradient of the first layer's inputs, or zeros.
    """
    done, shifts = forward(network, images), network.shifts
    hidden = [hidden_values(network, pooled) for pooled in done.pooled]
    predicted = [
        operands(values @ network.last[:, : layer.row], shifts.predicted)
        for values, layer in zip(hidden, network.layers, strict=True)
    ]
    for index in reversed(range(len(network.layers))):
        layer, inputs, weight = network.layers[index], done.inputs[index], network.weights[index]
        before = np.zeros_like(images)
        if index or network.first_input_grad:
            sums = integer_sums(layer, Pass.INPUT_GRAD, inputs, weight, grads)
            before = masked(inputs, sums, shifts.input_grad)
        sums = integer_sums(layer, Pass.WEIGHT_GRAD, inputs, weight, grads)
        network.weights[index] = updated(weight, sums, shifts.update)
        if learns:
            error = updated(predicted[index], _rows(sums), shifts.error)
            _learn(network, done.pooled[index], hidden[index], error)
        if index:
            grads = _unfollow(before, network.layers[index - 1])
    return done, before


def pooled_sums(network: IntegerNetwork, index: int, sums: Integers) -> Integers:
    """A layer's sums pooled to the grid, (filters, 1, grid, grid)."""
    layer, (down, across) = network.layers[index], network.cells(index)
    high, wide = layer.out
    cells = sums.reshape(len(sums), layer.c_out, down, high // down, across, wide // across).sum((0, 3, 5))
    whole = cells.repeat(network.grid // down, 1).repeat(network.grid // across, 2)
    return operands(whole, network.shifts.pool)[:, None]


def hidden_values(network: IntegerNetwork, pooled: Integers) -> Integers:
    """Inputs of the predictor's linear layer, the constant included."""
    hidden = relu(_forward_sums(_PREDICTOR, pooled, network.convolution), network.shifts.hidden)
    return np.hstack([hidden.reshape(len(pooled), -1), np.full((len(pooled), 1), network.one)])


def _learn(network: IntegerNetwork, pooled: Integers, hidden: Integers, error: Integers) -> None:
    shifts, row = network.shifts, error.shape[1]
    hidden_grad = masked(hidden, error @ network.last[:, :row].T, shifts.hidden_grad)[:, :-1]
    images = hidden_grad.reshape(-1, 1, network.grid, network.grid)
    sums = integer_sums(_PREDICTOR, Pass.WEIGHT_GRAD, pooled, network.convolution, images)
    network.last[:, :row] = updated(network.last[:, :row], hidden.T @ error, shifts.learn)
    network.convolution[...] = updated(network.convolution, sums, shifts.learn)


def _forward_sums(layer: Convolution, images: Integers, weight: Integers) -> Integers:
    return integer_sums(layer, Pass.FORWARD, images, weight, images)


def _follow(images: Integers, layer: Convolution) -> Integers:
    """A layer's outputs as the next layer's inputs; a linear layer takes them channels last."""
    if images.shape[1:] == (layer.c_in, *layer.image):
        return images
    return images.transpose(0, 2, 3, 1).reshape(len(images), layer.c_in, *layer.image)


def _unfollow(grads: Integers, layer: Convolution) -> Integers:
    """Gradients of a layer's inputs as those of the outputs of the layer before it."""
    if grads.shape[1:] == (layer.c_out, *layer.out):
        return grads
    return grads.reshape(len(grads), *layer.out, layer.c_out).transpose(0, 3, 1, 2)


def _rows(weight: Integers) -> Integers:
    """(c_out, c_in, height, width) to (c_out, row), ordered (taps, channels)."""
    return weight.transpose(0, 2, 3, 1).reshape(len(weight), -1)


def _weight(rows: Integers, layer: Convolution) -> Integers:
    """The reverse of `_rows`."""
    return rows.reshape(len(rows), *layer.kernel, layer.c_in // layer.groups).transpose(0, 3, 1, 2)


def _real(values: Numbers) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).double()
