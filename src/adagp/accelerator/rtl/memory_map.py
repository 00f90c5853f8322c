"""Where a network, a batch and the predictor are in DRAM.

Images are stored channels last, and weights as (taps, input channels of a group, filters).
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from adagp.accelerator.rtl.dram import Allocator, Words
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.integer_network import IntegerNetwork
from adagp.accelerator.rtl.tensors import Convolution, Filters, Images


@dataclass(frozen=True)
class LayerMemory:
    """First addresses of what belongs to a layer.

    Attributes:
        outputs: Its outputs, which the next layer reads.
        grads: Gradients of its outputs.
        weights: Its weights.
        pooled: Its pooled outputs, (grid + 2, grid + 2, filters), with a border of zeros.
        hidden: The predictor's hidden values and the constant, (features + 1, filters).
        hidden_grad: Their gradients.
        predicted: The predicted gradient, laid out as the weights.
        error: Predicted minus true gradient.
    """

    outputs: int
    grads: int
    weights: int
    pooled: int
    hidden: int
    hidden_grad: int
    predicted: int
    error: int


class MemoryMap:
    """The regions of a network and of batches of `samples` samples."""

    def __init__(self, network: IntegerNetwork, samples: int, space: Allocator | None = None) -> None:
        """Lay everything out, by default from address 0 on."""
        self.network, self.samples = network, samples
        space = space or Allocator()
        first = network.layers[0]
        self.images = space.take(samples * first.c_in * prod(first.image))
        self.image_grads = space.take(samples * first.c_in * prod(first.image))
        self.last = space.take(network.last.size)
        self.convolution = space.take(network.convolution.size)
        self.layers = [self._layer(space, layer) for layer in network.layers]
        self.words = space.words

    def _layer(self, space: Allocator, layer: Convolution) -> LayerMemory:
        grid, outputs = self.network.grid, self.samples * layer.c_out * prod(layer.out)
        hidden, weights = (self.network.features + 1) * layer.c_out, layer.row * layer.c_out
        sizes = (outputs, outputs, weights, (grid + 2) ** 2 * layer.c_out, hidden, hidden, weights, weights)
        return LayerMemory(*(space.take(size) for size in sizes))

    # Regions as the products see them.

    def inputs(self, index: int) -> Images:
        """Inputs of a layer."""
        layer = self.network.layers[index]
        return Images.dense(self.layers[index - 1].outputs if index else self.images, layer.c_in, layer.image)

    def input_grads(self, index: int) -> Images:
        """Gradients of a layer's inputs."""
        layer = self.network.layers[index]
        return Images.dense(self.layers[index - 1].grads if index else self.image_grads, layer.c_in, layer.image)

    def outputs(self, index: int) -> Images:
        """Outputs of a layer."""
        layer = self.network.layers[index]
        return Images.dense(self.layers[index].outputs, layer.c_out, layer.out)

    def grads(self, index: int) -> Images:
        """Gradients of a layer's outputs."""
        layer = self.network.layers[index]
        return Images.dense(self.layers[index].grads, layer.c_out, layer.out)

    def filters(self, index: int, base: int, group: int = 0) -> Filters:
        """A region laid out as a layer's weights, as one of its groups sees it."""
        layer = self.network.layers[index]
        first = base + group * (layer.c_out // layer.groups)
        return Filters(first, layer.c_in // layer.groups * layer.c_out, layer.c_out, 1)

    # Their contents.

    def filled(self, images: Integers, grads: Integers | None = None) -> Words:
        """DRAM before a batch; `grads` are those of the last layer's outputs."""
        network, dram = self.network, np.zeros(self.words, dtype=np.int64)
        self.put(dram, self.images, _channels_last(images))
        self.put(dram, self.last, network.last.T)
        self.put(dram, self.convolution, network.convolution)
        for layer, place, weight in zip(network.layers, self.layers, network.weights, strict=True):
            self.put(dram, place.weights, weight.transpose(2, 3, 1, 0))
            self.put(
                dram, place.hidden + network.features * layer.c_out, np.full(layer.c_out, network.one, dtype=np.int64)
            )
        if grads is not None:
            self.put(dram, self.layers[-1].grads, _channels_last(grads))
        return dram

    def put(self, dram: Words, base: int, values: Integers) -> None:
        """Store values from an address on."""
        dram[base : base + values.size] = values.ravel()

    def read_outputs(self, dram: Words) -> Integers:
        """Outputs of the last layer."""
        layer = self.network.layers[-1]
        return _images(dram, self.layers[-1].outputs, self.samples, layer.c_out, layer.out)

    def read_image_grads(self, dram: Words) -> Integers:
        """Gradients of the first layer's inputs."""
        layer = self.network.layers[0]
        return _images(dram, self.image_grads, self.samples, layer.c_in, layer.image)

    def read_network(self, dram: Words) -> IntegerNetwork:
        """The network after a batch."""
        found = self.network.copy()
        for index, (layer, place) in enumerate(zip(found.layers, self.layers, strict=True)):
            size = (*layer.kernel, layer.c_in // layer.groups, layer.c_out)
            found.weights[index] = dram[place.weights : place.weights + prod(size)].reshape(size).transpose(3, 2, 0, 1)
        features, longest = found.last.shape
        found.last = dram[self.last : self.last + found.last.size].reshape(longest, features).T.copy()
        found.convolution = dram[self.convolution : self.convolution + 9].reshape(found.convolution.shape).copy()
        return found


def _channels_last(images: Integers) -> Integers:
    return images.transpose(0, 2, 3, 1)


def _images(dram: Words, base: int, samples: int, channels: int, size: tuple[int, int]) -> Integers:
    words = dram[base : base + samples * channels * prod(size)]
    return words.reshape(samples, *size, channels).transpose(0, 3, 1, 2)
