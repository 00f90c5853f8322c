"""The golden model of a BP batch, by torch's convolutions."""

from adagp.accelerator.rtl import golden_batch
from adagp.accelerator.rtl.golden import Integers, masked, operands, updated
from adagp.accelerator.rtl.integer_network import IntegerBatch, IntegerNetwork


def bp_batch(network: IntegerNetwork, batch: IntegerBatch, *, learns: bool) -> None:
    """Forward and backward, every layer updated by its true gradient, from which the predictor may learn."""
    shifts = network.shifts
    for index, layer in enumerate(network.layers):
        batch.pooled[index] = golden_batch.forward(network, batch, index)
        batch.hidden[index] = golden_batch.hidden_values(network, batch.pooled[index])
        batch.predicted[index] = operands(batch.hidden[index] @ network.last[:, : layer.row], shifts.predicted)
    for index in reversed(range(len(network.layers))):
        layer, images, grads = network.layers[index], batch.inputs[index], batch.grads[index]
        if index:
            before = masked(
                images, golden_batch.input_grad_sums(layer, grads, network.weights[index]), shifts.input_grad
            )
            previous = network.layers[index - 1]
            batch.grads[index - 1] = before.reshape(-1, previous.c_out, *previous.out)
        sums = golden_batch.weight_grad_sums(layer, images, grads)
        network.weights[index] = updated(network.weights[index], sums, shifts.update)
        if learns:
            error = updated(batch.predicted[index], sums.reshape(layer.c_out, -1), shifts.error)
            _learn(network, batch, index, error)


def _learn(network: IntegerNetwork, batch: IntegerBatch, index: int, error: Integers) -> None:
    shifts, hidden, row = network.shifts, batch.hidden[index], network.layers[index].row
    hidden_grad = masked(hidden, error @ network.last[:, :row].T, shifts.hidden_grad)[:, :-1]
    images = hidden_grad.reshape(-1, 1, network.grid, network.grid)
    sums = golden_batch.weight_grad_sums(network.predictor_convolution, batch.pooled[index], images)
    network.last[:, :row] = updated(network.last[:, :row], hidden.T @ error, shifts.learn)
    network.convolution[...] = updated(network.convolution, sums, shifts.learn)
