"""The passes of a batch as commands to a core: a layer's forward and backward, a prediction, and learning."""

from dataclasses import dataclass

import numpy as np

from adagp.accelerator.rtl.descriptor import Memory, Mode
from adagp.accelerator.rtl.driver import Command, Keep, Product, Values
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.integer_network import IntegerBatch, IntegerNetwork


@dataclass(frozen=True)
class LayerPasses:
    """The passes of the layers themselves, on one core."""

    network: IntegerNetwork
    batch: IntegerBatch
    geometry: CoreGeometry

    def forward(self, index: int) -> list[Command]:
        """Outputs, with ReLU except after the last layer, and pooled for the predictor if the core can pool."""
        network, batch, layer = self.network, self.batch, self.network.layers[index]
        order, run = network.cells(index, batch.samples)
        product = Product(len(order), layer.row, layer.c_out, self.geometry)
        last = index == len(network.layers) - 1
        mode = Mode.PLAIN if last else Mode.RELU

        def keep(results: Integers) -> None:
            pixels = np.empty_like(results)
            pixels[order] = results
            images = layer.images(pixels)
            if last:
                batch.outputs = images
            else:
                following = network.layers[index + 1]
                batch.inputs[index + 1] = images.reshape(-1, following.c_in, *following.image)

        def keep_pooled(pooled: Integers) -> None:
            batch.pooled[index] = network.repeated(pooled)

        shifts = network.shifts
        return [
            product.load_inputs(lambda: layer.patches(batch.inputs[index])[order]),
            product.load_weights(lambda: layer.filters(network.weights[index])),
            product.multiply(),
            product.drain_pooled(shifts.forward, keep, mode, run, shifts.pool, keep_pooled)
            if self.geometry.pools
            else product.drain(shifts.forward, keep, mode),
        ]

    def backward(self, index: int, *, learns: bool) -> list[Command]:
        """The input gradient, except for the first layer, then the weight gradient and the update.

        If the predictor learns, the gradient is drained once more, as the error of the prediction.
        """
        return [*(self._input_grad(index) if index else []), *self._weight_grad(index, learns)]

    def _input_grad(self, index: int) -> list[Command]:
        network, batch, layer = self.network, self.batch, self.network.layers[index]
        rows = batch.samples * layer.image[0] * layer.image[1]
        product = Product(rows, layer.c_out * layer.kernel[0] * layer.kernel[1], layer.c_in, self.geometry)

        def keep(results: Integers) -> None:
            images = results.reshape(batch.samples, *layer.image, layer.c_in).transpose(0, 3, 1, 2)
            before = network.layers[index - 1]
            batch.grads[index - 1] = images.reshape(batch.samples, before.c_out, *before.out)

        return [
            product.load_inputs(lambda: layer.spread(batch.grads[index])),
            product.load_weights(lambda: layer.turned(network.weights[index])),
            product.multiply(),
            product.drain(network.shifts.input_grad, keep, Mode.MASK, lambda: layer.pixels(batch.inputs[index])),
        ]

    def _weight_grad(self, index: int, learns: bool) -> list[Command]:
        network, batch, layer = self.network, self.batch, self.network.layers[index]
        pixels = batch.samples * layer.out[0] * layer.out[1]
        product = Product(layer.row, pixels, layer.c_out, self.geometry)

        def keep(weights: Integers) -> None:
            network.weights[index] = weights.T.reshape(network.weights[index].shape)

        def keep_error(error: Integers) -> None:
            batch.error[index] = error.T

        commands = [
            product.load_inputs(lambda: layer.patches(batch.inputs[index]).T),
            product.load_weights(lambda: layer.pixels(batch.grads[index])),
            product.multiply(),
            product.drain(network.shifts.update, keep, Mode.UPDATE, lambda: layer.filters(network.weights[index])),
        ]
        if learns:
            predicted = batch.predicted
            commands.append(product.drain(network.shifts.error, keep_error, Mode.UPDATE, lambda: predicted[index].T))
        return commands


@dataclass(frozen=True)
class PredictorPasses:
    """The predictor's passes, on the core of the layers or on its own.

    Attributes:
        memory: The memory that holds its weights during a product.
        resident: Whether they stay there. Otherwise they are loaded for every layer and drained with every update.
    """

    network: IntegerNetwork
    batch: IntegerBatch
    geometry: CoreGeometry
    memory: Memory
    resident: bool

    def load(self) -> list[Command]:
        """Load its weights; a resident predictor needs this once, before the first batch."""
        convolution, last = self._products(1, self.network.last.shape[1])
        return [convolution.load_weights(self._convolution), last.load_weights(lambda: self.network.last)]

    def predict(self, index: int, *, updates: bool) -> list[Command]:
        """Predict a layer's rows from pooled outputs, and subtract them from the weights or keep them to learn from."""
        network, batch, layer = self.network, self.batch, self.network.layers[index]
        convolution, last = self._products(layer.c_out, layer.row)
        loads = (
            []
            if self.resident
            else [
                convolution.load_weights(self._convolution),
                last.load_weights(lambda: network.last[:, : layer.row]),
            ]
        )

        def keep_hidden(hidden: Integers) -> None:
            constant = np.full((layer.c_out, 1), network.one)
            batch.hidden[index] = np.hstack([hidden.reshape(layer.c_out, network.features), constant])

        def keep_weights(rows: Integers) -> None:
            network.weights[index] = rows.reshape(network.weights[index].shape)

        def keep_rows(rows: Integers) -> None:
            batch.predicted[index] = rows

        shifts = network.shifts
        return [
            *loads,
            convolution.load_inputs(lambda: self._patches(index)),
            convolution.multiply(),
            convolution.drain(shifts.hidden, keep_hidden, Mode.RELU),
            last.load_inputs(lambda: batch.hidden[index]),
            last.multiply(),
            last.drain(
                shifts.predicted_update,
                keep_weights,
                Mode.UPDATE,
                lambda: network.weights[index].reshape(layer.c_out, -1),
            )
            if updates
            else last.drain(shifts.predicted, keep_rows),
        ]

    def learn(self, index: int) -> list[Command]:
        """One step of gradient descent on the squared error of a layer's predicted rows."""
        network, batch, layer = self.network, self.batch, self.network.layers[index]
        shifts, features = network.shifts, network.features
        beyond = sum(product.weight_rows for product in self._products(1, network.last.shape[1]))
        base = beyond if self.resident and self.memory is Memory.WEIGHTS else 0
        hidden = Product(layer.c_out, layer.row, features + 1, self.geometry, weight_base=base)
        last = Product(features + 1, layer.c_out, layer.row, self.geometry, weight_base=base)
        convolution = Product(9, layer.c_out * features, 1, self.geometry, weight_base=base)
        hidden_grad: list[Integers] = []

        def keep_last(weights: Integers) -> None:
            network.last[:, : layer.row] = weights

        def keep_convolution(weights: Integers) -> None:
            network.convolution[...] = weights.reshape(network.convolution.shape)

        at_convolution, at_last = self._products(1, layer.row)
        return [
            hidden.load_inputs(lambda: batch.error[index]),
            hidden.load_weights(lambda: network.last[:, : layer.row].T),
            hidden.multiply(),
            hidden.drain(shifts.hidden_grad, hidden_grad.append, Mode.MASK, lambda: batch.hidden[index]),
            last.load_inputs(lambda: batch.hidden[index].T),
            last.load_weights(lambda: batch.error[index]),
            last.multiply(),
            *self._update(last, keep_last, at_last, lambda: network.last[:, : layer.row]),
            convolution.load_inputs(lambda: self._patches(index).T),
            convolution.load_weights(lambda: hidden_grad[0][:, :-1].reshape(-1, 1)),
            convolution.multiply(),
            *self._update(convolution, keep_convolution, at_convolution, self._convolution),
        ]

    def _update(self, gradient: Product, keep: Keep, target: Product, old: Values) -> list[Command]:
        """Subtract a gradient from the weights of `target`."""
        shift = self.network.shifts.learn
        if self.resident:
            return gradient.update_in_place(shift, keep, target.memory, target.weight_base)
        return [gradient.drain(shift, keep, Mode.UPDATE, old)]

    def _products(self, filters: int, row: int) -> tuple[Product, Product]:
        """The products of its convolution and its linear layer, whose weights follow each other in memory."""
        features = self.network.features
        convolution = Product(filters * features, 9, 1, self.geometry, self.memory)
        return convolution, Product(
            filters, features + 1, row, self.geometry, self.memory, weight_base=convolution.weight_rows
        )

    def _convolution(self) -> Integers:
        return self.network.convolution.reshape(9, 1)

    def _patches(self, index: int) -> Integers:
        return self.network.predictor_convolution.patches(self.batch.pooled[index])
