"""The passes of a batch as products: a layer's forward and backward, a prediction, and learning.

Each function adds one pass to a core's program. What one pass writes to DRAM, another reads only after a barrier.
"""

from dataclasses import dataclass

from adagp.accelerator.rtl.correlating import Correlating
from adagp.accelerator.rtl.descriptor import Drain, Load, Memory, Mode
from adagp.accelerator.rtl.finishing import Finish, Pool, Resident
from adagp.accelerator.rtl.geometry import folds
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.program import Loop
from adagp.accelerator.rtl.program_builder import ProgramBuilder
from adagp.accelerator.rtl.sliding import Sliding
from adagp.accelerator.rtl.tensors import Convolution, Filters, Images


@dataclass(frozen=True)
class LayerPasses:
    """The passes of the layers themselves, on one core."""

    memory: MemoryMap
    builder: ProgramBuilder

    def forward(self, index: int) -> None:
        """Outputs, with ReLU except after the last layer, and pooled for the predictor if the core can pool."""
        memory, network = self.memory, self.memory.network
        layer, shifts = network.layers[index], network.shifts
        mode = Mode.PLAIN if index == len(network.layers) - 1 else Mode.RELU
        for group in range(layer.groups):
            c_in, c_out = group * layer.group.c_in, group * layer.group.c_out
            pool = self._pool(index, c_out) if self.builder.core.pool_depth else None
            finish = Finish(memory.outputs(index).channel(c_out), shifts.forward, mode, pool=pool)
            Sliding(
                memory.samples,
                layer.out,
                layer.group.c_in,
                layer.group.c_out,
                layer.image,
                layer.kernel,
                memory.inputs(index).channel(c_in),
                memory.filters(index, memory.layers[index].weights, group),
                [finish],
                layer.stride,
                layer.padding,
                layer.dilation,
            ).emit(self.builder)

    def backward(self, index: int, *, learns: bool) -> None:
        """The input gradient, except for the first layer, then the weight gradient and the update.

        If the predictor learns, the gradient is drained once more, as the error of the prediction.
        """
        if index or self.memory.network.first_input_grad:
            self.input_grad(index)
            self.builder.barrier()
        self.weight_grad(index, learns=learns)

    def _pool(self, index: int, c_out: int) -> Pool:
        network, layer = self.memory.network, self.memory.network.layers[index]
        grid, cells = network.grid, network.cells(index)
        images = Images.dense(self.memory.layers[index].pooled + c_out, layer.c_out, (grid + 2, grid + 2))
        inside = Images(images.at(0, 1, 1), images.sample, images.row, images.pixel)
        return Pool(cells, inside, network.shifts.pool, (grid // cells[0], grid // cells[1]))

    def input_grad(self, index: int) -> None:
        """The input gradient, masked by the ReLU before the layer."""
        memory, layer = self.memory, self.memory.network.layers[index]
        before = tuple(
            far * (taps - 1) - pad for far, taps, pad in zip(layer.dilation, layer.kernel, layer.padding, strict=True)
        )
        for group in range(layer.groups):
            c_in, c_out = group * layer.group.c_in, group * layer.group.c_out
            filters = memory.filters(index, memory.layers[index].weights, group)
            finish = Finish(
                memory.input_grads(index).channel(c_in),
                memory.network.shifts.input_grad,
                Mode.MASK,
                memory.inputs(index).channel(c_in),
            )
            Sliding(
                memory.samples,
                layer.image,
                layer.group.c_out,
                layer.group.c_in,
                layer.out,
                layer.kernel,
                memory.grads(index).channel(c_out),
                filters.turned(layer.taps),
                [finish],
                (1, 1),
                (before[0], before[1]),
                layer.dilation,
                layer.stride,
            ).emit(self.builder)

    def weight_grad(self, index: int, *, learns: bool) -> None:
        """The weight gradient and the update; if the predictor learns, its error too."""
        memory, layer, shifts = self.memory, self.memory.network.layers[index], self.memory.network.shifts
        place = memory.layers[index]
        for group in range(layer.groups):
            weights, predicted, error = (
                memory.filters(index, base, group) for base in (place.weights, place.predicted, place.error)
            )
            finishes = [Finish(weights, shifts.update, Mode.UPDATE, weights)]
            if learns:
                finishes.append(Finish(error, shifts.error, Mode.UPDATE, predicted))
            inputs = memory.inputs(index).channel(group * layer.group.c_in)
            grads = memory.grads(index).channel(group * layer.group.c_out)
            Correlating(memory.samples, layer.group, inputs, grads, finishes).emit(self.builder)


@dataclass(frozen=True)
class PredictorPasses:
    """The predictor's passes, on the core of the layers or on its own.

    Its linear layer stays in a core's memory for the predictor, and is updated there, if there is one that holds it.
    Otherwise it is loaded when needed.
    """

    memory: MemoryMap
    builder: ProgramBuilder

    @property
    def _resident(self) -> Resident | None:
        core, (inputs, rows) = self.builder.core, self.memory.network.last.shape
        return Resident(0, rows) if folds(inputs, core.predictor_banks) * rows <= core.predictor_depth else None

    def load(self) -> None:
        """Load what stays, and clear the pooling memory; needed once, before the first batch."""
        core, memory = self.builder.core, self.memory
        inputs, rows = memory.network.last.shape
        if self._resident:
            banks = core.predictor_banks
            for fold in range(folds(inputs, banks)):
                words = min(banks, inputs - fold * banks)
                load = Load(Memory.PREDICTOR, memory.last + fold * banks, fold * rows, words, words)
                self.builder.program.work(load, (Loop(rows, inputs),))
        if core.pool_depth:
            drain = Drain(0, core.pool_depth, words=0, tail=0, from_pool=True, clears=True)  # DRAM is left alone
            self.builder.program.work(drain, (Loop(core.pool_depth),))

    def predict(self, index: int, *, updates: bool) -> None:
        """Predict a layer's rows from pooled outputs, and subtract them from the weights or keep them to learn from."""
        network, layer, place = self.memory.network, self.memory.network.layers[index], self.memory.layers[index]
        grid, filters, shifts = network.grid, layer.c_out, network.shifts
        hidden = Images(place.hidden, 1, grid * filters, filters)
        Sliding(
            filters,
            (grid, grid),
            1,
            1,
            (grid + 2, grid + 2),
            (3, 3),
            self._pooled(index),
            Filters(self.memory.convolution, 1, 1, 1),
            [Finish(hidden, shifts.hidden, Mode.RELU)],
        ).emit(self.builder)
        self.builder.barrier()
        weights, predicted = (Images(base, filters, 0, 0) for base in (place.weights, place.predicted))
        finish = (
            Finish(weights, shifts.predicted_update, Mode.UPDATE, weights)
            if updates
            else Finish(predicted, shifts.predicted)
        )
        Sliding(
            layer.row,
            (1, 1),
            network.features + 1,
            filters,
            (1, 1),
            (1, 1),
            self._resident or self._last,
            Filters(place.hidden, 0, filters, 1),
            [finish],
        ).emit(self.builder)

    def learn(self, index: int) -> None:
        """One step of gradient descent on the squared error of a layer's predicted rows."""
        network, layer, place = self.memory.network, self.memory.network.layers[index], self.memory.layers[index]
        filters, shifts, inputs = layer.c_out, network.shifts, network.features + 1
        error = Images(place.error, filters, 0, 0)
        hidden, hidden_grad = (Filters(base, 0, filters, 1) for base in (place.hidden, place.hidden_grad))
        finish = Finish(hidden_grad, shifts.hidden_grad, Mode.MASK, hidden)
        Correlating(layer.row, Convolution(inputs, filters), self._last, error, [finish]).emit(self.builder)
        self.builder.barrier()
        last = Finish(self._last, shifts.learn, Mode.UPDATE, self._last, self._resident)
        Sliding(
            layer.row,
            (1, 1),
            filters,
            inputs,
            (1, 1),
            (1, 1),
            error,
            Filters(place.hidden, 0, 1, filters),
            [last],
            narrow=self._resident is not None,
        ).emit(self.builder)
        grid = network.grid
        convolution = Filters(self.memory.convolution, 1, 1, 1)
        Correlating(
            filters,
            Convolution(1, 1, (grid + 2, grid + 2), (3, 3)),
            self._pooled(index),
            Images(place.hidden_grad, 1, grid * filters, filters),
            [Finish(convolution, shifts.learn, Mode.UPDATE, convolution)],
        ).emit(self.builder)

    @property
    def _last(self) -> Images:
        """Its linear layer, a row of the gradient after the other."""
        return Images(self.memory.last, self.memory.network.features + 1, 0, 0)

    def _pooled(self, index: int) -> Images:
        filters, size = self.memory.network.layers[index].c_out, self.memory.network.grid + 2
        return Images(self.memory.layers[index].pooled, 1, size * filters, filters)
