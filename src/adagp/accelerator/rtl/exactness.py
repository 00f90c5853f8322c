"""Whether a batch on the RTL left in DRAM what the golden model gives, in every bit."""

import numpy as np

from adagp.accelerator.rtl import golden_batch
from adagp.accelerator.rtl.dram import Words
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.schedules import Phase


def is_exact(
    memory: MemoryMap, dram: Words, images: Integers, grads: Integers, phase: Phase, *, learns: bool = True
) -> bool:
    """Compare outputs, gradients of images, weights and predictor after a batch; a BP batch may leave out learning."""
    expected, found = memory.network.copy(), memory.read_network(dram)
    if phase is Phase.GP:
        done, before = golden_batch.gp_batch(expected, images), np.zeros_like(images)
    else:
        done, before = golden_batch.bp_batch(expected, images, grads, learns=learns)
    pairs = [
        (memory.read_outputs(dram), done.outputs),
        (memory.read_image_grads(dram), before),
        (found.last, expected.last),
        (found.convolution, expected.convolution),
        *zip(found.weights, expected.weights, strict=True),
    ]
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)
