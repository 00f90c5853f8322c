"""One pass of a layer on the RTL, with the result that torch's convolutions give."""

import numpy as np

from adagp.accelerator import Pass
from adagp.accelerator.rtl import golden
from adagp.accelerator.rtl.correlating import Correlating
from adagp.accelerator.rtl.descriptor import Mode
from adagp.accelerator.rtl.dram import Allocator
from adagp.accelerator.rtl.finishing import Finish
from adagp.accelerator.rtl.golden_batch import integer_sums
from adagp.accelerator.rtl.program_builder import ProgramBuilder
from adagp.accelerator.rtl.sliding import Sliding
from adagp.accelerator.rtl.tensors import Filters, Images

SHIFT = 7


class PassCase:
    """A pass of a layer as a program, DRAM before it, and what must be in DRAM after it."""

    def __init__(self, layer, which, samples, core, seed=0, limit=None, shift=SHIFT):
        self._shift = shift
        rng = np.random.default_rng(seed)
        limit = limit or 1 << min(core.width - 1, 10)
        images = rng.integers(-limit, limit, (samples, layer.c_in, *layer.image))
        weight = rng.integers(-limit, limit, (layer.c_out, layer.c_in // layer.groups, *layer.kernel))
        grads = rng.integers(-limit, limit, (samples, layer.c_out, *layer.out))
        space = Allocator()
        stored = [images.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0), grads.transpose(0, 2, 3, 1)]
        x, w, g = (space.take(each.size) for each in stored)
        kept = {Pass.FORWARD: stored[2], Pass.INPUT_GRAD: stored[0], Pass.WEIGHT_GRAD: stored[1]}[which]
        out = space.take(kept.size)
        self.dram = np.zeros(space.words, dtype=np.int64)
        for place, each in zip((x, w, g), stored, strict=True):
            self.dram[place : place + each.size] = each.ravel()
        self.builder, self._out = ProgramBuilder(core), slice(out, out + kept.size)
        for group in range(layer.groups):
            self._emit(layer, which, samples, group, x, w, g, out)
        self.builder.barrier()
        sums = integer_sums(layer, which, images, weight, grads)
        sums = golden.wrapped(sums.astype(object), core.sum_width)
        match which:
            case Pass.FORWARD:
                expected = golden.relu(sums, shift, core.width).transpose(0, 2, 3, 1)
            case Pass.INPUT_GRAD:
                expected = golden.masked(images, sums, shift, core.width).transpose(0, 2, 3, 1)
            case Pass.WEIGHT_GRAD:
                expected = golden.updated(weight, sums, shift, core.width).transpose(2, 3, 1, 0)
        self.expected = expected.ravel()

    def _emit(self, layer, which, samples, group, x, w, g, out):
        part = layer.group
        c_in, c_out = group * part.c_in, group * part.c_out
        images = Images.dense(x, layer.c_in, layer.image).channel(c_in)
        grads = Images.dense(g, layer.c_out, layer.out).channel(c_out)

        def filters(base):
            return Filters(base + c_out, part.c_in * layer.c_out, layer.c_out, 1)

        match which:
            case Pass.FORWARD:
                finish = Finish(Images.dense(out, layer.c_out, layer.out).channel(c_out), self._shift, Mode.RELU)
                work = Sliding(
                    samples, layer.out, part.c_in, part.c_out, layer.image, layer.kernel, images, filters(w), [finish],
                    layer.stride, layer.padding, layer.dilation,
                )  # fmt: skip
            case Pass.INPUT_GRAD:
                result = Images.dense(out, layer.c_in, layer.image).channel(c_in)
                before = [
                    far * (taps - 1) - pad
                    for far, taps, pad in zip(layer.dilation, layer.kernel, layer.padding, strict=True)
                ]
                work = Sliding(
                    samples, layer.image, part.c_out, part.c_in, layer.out, layer.kernel, grads,
                    filters(w).turned(layer.taps), [Finish(result, self._shift, Mode.MASK, images)], (1, 1),
                    tuple(before), layer.dilation, layer.stride,
                )  # fmt: skip
            case Pass.WEIGHT_GRAD:
                finish = Finish(filters(out), self._shift, Mode.UPDATE, filters(w))
                work = Correlating(samples, part, images, grads, [finish])
        work.emit(self.builder)

    @property
    def programs(self):
        return {"main": self.builder.program.descriptors}

    @property
    def result(self):
        return self.dram[self._out]
