"""Checks of the hardware: layers with real numbers on the RTL, against the golden model and torch.

Every pass of a convolution and of a linear layer runs in simulation, and a GP step (forward, predictor, update). The
result must equal the golden model's bit by bit. It must lie within the quantisation error of torch's result in 64-bit
floating point. It must take the cycles of the formulas, moves included.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from adagp.accelerator.designs import Design
from adagp.accelerator.rtl import golden, golden_batch
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.correlating import Correlating
from adagp.accelerator.rtl.cycles import program_cycles
from adagp.accelerator.rtl.dram import Allocator, Timing
from adagp.accelerator.rtl.finishing import Finish
from adagp.accelerator.rtl.fixed import Bilinear, Fixed, Reals, exponent_for, multiplied, product_error
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.golden_batch import pass_sums
from adagp.accelerator.rtl.integer_network import IntegerNetwork, Shifts
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.program_builder import ProgramBuilder
from adagp.accelerator.rtl.sliding import Sliding
from adagp.accelerator.rtl.tensors import Convolution, Filters, Images
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.top import MAIN
from adagp.accelerator.shapes import Pass
from adagp.schedules import Phase

CONVOLUTION = Convolution(2, 3, (4, 4), (3, 3), padding=(1, 1))
LINEAR = Convolution(6, 5)
GRID = 2
"""Grid of the predictor in the GP step."""
LEARNING_RATE_SHIFT = 6
"""The GP step's learning rate is 2 to the minus this."""
_TIMING = Timing(bandwidth_words=16, latency_cycles=4)


@dataclass(frozen=True)
class Check:
    """One computation on the RTL.

    Attributes:
        name: What was computed.
        exact: Whether every bit equals the golden model's.
        error: The largest distance from torch's result.
        bound: The largest distance that quantisation allows for any entry.
        within: Whether every entry is as close to torch's as quantisation demands of it.
        cycles: Measured cycles.
        model_cycles: Cycles by the formulas.
    """

    name: str
    exact: bool
    error: float
    bound: float
    within: bool
    cycles: int
    model_cycles: int

    @property
    def passed(self) -> bool:
        """Whether bits, error and cycles are as they must be."""
        return self.exact and self.within and self.cycles == self.model_cycles


def run_checks(rows: int = 4, columns: int = 3, seed: int = 0) -> Iterator[Check]:
    """Run every check on an array of the given size; small arrays are quick."""
    core = CoreGeometry(
        rows, columns, input_depth=2048, weight_depth=2048, output_depth=256, old_depth=512, pool_depth=16
    )
    bench, rng = Bench({MAIN: core}, _TIMING), np.random.default_rng(seed)
    for name, layer in (("convolution", CONVOLUTION), ("linear", LINEAR)):
        yield from layer_checks(name, layer, bench, rng)
    yield gp_step_check(CONVOLUTION, bench, rng)


def layer_checks(name: str, layer: Convolution, bench: Bench, rng: np.random.Generator, batch: int = 2) -> list[Check]:
    """Check the three passes of a layer with normally distributed numbers."""
    real = {
        "images": rng.normal(size=(batch, layer.c_in, *layer.image)),
        "weight": rng.normal(size=(layer.c_out, layer.c_in, *layer.kernel)),
        "grads": rng.normal(size=(batch, layer.c_out, *layer.out)),
    }
    fixed = {which: Fixed.of(values) for which, values in real.items()}
    found = []
    for which, (first, second) in _OPERANDS.items():
        multiply = _multiply(layer, which, real, first, second)
        left, right = fixed[first], fixed[second]
        sums = np.rint(multiply(*(side.whole.astype(np.float64) for side in (left, right)))).astype(np.int64)
        shift = max(0, int(np.abs(sums).max()).bit_length() - 15)
        whole, cycles, model_cycles = _run_pass(layer, which, bench, fixed, shift)
        result = multiplied(multiply, left, right, whole, shift)
        truth = multiply(real[first], real[second])
        title = f"{name}, {which.value.replace('_', ' ')}"
        found.append(_check(title, result, golden.operands(sums, shift), truth, cycles, model_cycles))
    return found


_OPERANDS = {
    Pass.FORWARD: ("images", "weight"),
    Pass.INPUT_GRAD: ("grads", "weight"),
    Pass.WEIGHT_GRAD: ("images", "grads"),
}


def _multiply(layer: Convolution, which: Pass, sizes: dict[str, Reals], first: str, second: str) -> Bilinear:
    """The product of a pass as a function of its two operands."""
    return lambda left, right: pass_sums(layer, which, **(sizes | {first: left, second: right}))


def _run_pass(
    layer: Convolution, which: Pass, bench: Bench, fixed: dict[str, Fixed], shift: int
) -> tuple[Integers, int, int]:
    """The result of a pass on the RTL, the cycles it took, and those of the formulas."""
    space, samples = Allocator(), len(fixed["images"].whole)
    stored = {name: value.whole.transpose(_ORDER[name]) for name, value in fixed.items()}
    places = {name: space.take(value.size) for name, value in stored.items()}
    result = {Pass.FORWARD: "grads", Pass.INPUT_GRAD: "images", Pass.WEIGHT_GRAD: "weight"}[which]
    out = space.take(stored[result].size)
    dram = np.zeros(space.words, dtype=np.int64)
    for name, value in stored.items():
        dram[places[name] : places[name] + value.size] = value.ravel()
    builder = ProgramBuilder(bench.cores[MAIN])
    _product(layer, which, samples, places, out, shift).emit(builder)
    builder.barrier()
    cycles = bench.run({MAIN: builder.program.descriptors}, dram)[MAIN].cycles
    model_cycles = program_cycles({MAIN: builder.program}, bench.cores, bench.timing)[MAIN].cycles
    shape = stored[result].shape
    back = np.argsort(_ORDER[result])
    return dram[out : out + stored[result].size].reshape(shape).transpose(back), cycles, model_cycles


def _product(
    layer: Convolution, which: Pass, samples: int, places: dict[str, int], out: int, shift: int
) -> Sliding | Correlating:
    """The product of a pass, on tensors without gaps at `places`, with its result at `out`."""
    images, grads = (
        Images.dense(places["images"], layer.c_in, layer.image),
        Images.dense(places["grads"], layer.c_out, layer.out),
    )
    filters = Filters.dense(places["weight"], layer.c_in, layer.c_out)
    match which:
        case Pass.FORWARD:
            finish = Finish(Images.dense(out, layer.c_out, layer.out), shift)
            return Sliding(
                samples,
                layer.out,
                layer.c_in,
                layer.c_out,
                layer.image,
                layer.kernel,
                images,
                filters,
                [finish],
                padding=layer.padding,
            )
        case Pass.INPUT_GRAD:
            finish = Finish(Images.dense(out, layer.c_in, layer.image), shift)
            before = tuple(taps - 1 - pad for taps, pad in zip(layer.kernel, layer.padding, strict=True))
            return Sliding(
                samples,
                layer.image,
                layer.c_out,
                layer.c_in,
                layer.out,
                layer.kernel,
                grads,
                filters.turned(layer.taps),
                [finish],
                padding=(before[0], before[1]),
            )
        case Pass.WEIGHT_GRAD:
            finish = Finish(Filters.dense(out, layer.c_in, layer.c_out), shift)
            return Correlating(samples, layer, images, grads, [finish])


_ORDER = {"images": (0, 2, 3, 1), "grads": (0, 2, 3, 1), "weight": (2, 3, 1, 0)}
"""How tensors are stored: images channels last, weights as (taps, input channels, filters)."""


def gp_step_check(layer: Convolution, bench: Bench, rng: np.random.Generator, batch: int = 2) -> Check:
    """Check forward, predictor and update of one layer; the predictor's weights are random."""
    images, weight, small, last = (
        rng.normal(size=size)
        for size in (
            (batch, layer.c_in, *layer.image),
            (layer.c_out, layer.c_in, *layer.kernel),
            (1, 1, 3, 3),
            (GRID * GRID + 1, layer.row),
        )
    )
    output, pooled, hidden, new = _torch_gp_step(layer, images, weight, small, last)
    run = output.size // layer.c_out // GRID**2  # the RTL sums where torch averages: the taps are divided
    x, w, c, v = (Fixed.of(real) for real in (images, weight, small / run, last))
    pooled_exponent = exponent_for(float(np.abs(pooled).max() * run))
    hidden_exponent = min(exponent_for(float(hidden.max())), 14)  # the constant 1 must fit too
    shifts = Shifts(
        forward=max(0, x.exponent + w.exponent - exponent_for(float(np.abs(output).max()))),
        pool=x.exponent + w.exponent - pooled_exponent,
        hidden=pooled_exponent + c.exponent - hidden_exponent,
        predicted_update=hidden_exponent + v.exponent - w.exponent + LEARNING_RATE_SHIFT,
    )
    one = 1 << hidden_exponent
    network = IntegerNetwork([layer], [w.whole], c.whole, v.whole, GRID, one, shifts)
    expected = network.copy()
    done = golden_batch.gp_batch(expected, x.whole)
    memory = MemoryMap(network, batch)
    dram = memory.filled(x.whole)
    programs = BatchPrograms(Design.LOW, bench.cores, memory).batch(Phase.GP)
    cycles = bench.run({MAIN: programs[MAIN].descriptors}, dram)[MAIN].cycles
    model_cycles = program_cycles(programs, bench.cores, bench.timing)[MAIN].cycles
    pooled_fixed = Fixed(done.pooled[0], pooled_exponent, _pooled_error(layer, x, w) + 0.5**pooled_exponent / 2)
    result = Fixed(
        memory.read_network(dram).weights[0],
        w.exponent,
        _gp_error(network, layer, w, c, v, pooled_fixed, hidden_exponent),
    )
    return _check("GP step", result, expected.weights[0], new, cycles, model_cycles)


def _pooled_error(layer: Convolution, x: Fixed, w: Fixed) -> Reals:
    """How far the sums of the cells may be from torch's, (filters, 1, grid, grid)."""
    empty = np.zeros((len(x.whole), layer.c_out, *layer.out))
    errors = product_error(lambda left, right: pass_sums(layer, Pass.FORWARD, left, right, empty), x, w)
    high, wide = (size // GRID for size in layer.out)
    return np.asarray(errors.reshape(-1, layer.c_out, GRID, high, GRID, wide).sum((0, 3, 5))[:, None])


def _gp_error(
    network: IntegerNetwork, layer: Convolution, w: Fixed, c: Fixed, v: Fixed, pooled: Fixed, hidden_exponent: int
) -> Reals:
    """How far the updated weights may be from torch's: the error bound, carried from product to product."""
    size = Convolution(1, 1, (GRID, GRID), (3, 3), padding=(1, 1))
    error = product_error(lambda left, right: pass_sums(size, Pass.FORWARD, left, right, left), pooled, c)
    errors = np.hstack([error.reshape(layer.c_out, -1) + 0.5**hidden_exponent / 2, np.zeros((layer.c_out, 1))])
    hidden = Fixed(golden_batch.hidden_values(network, pooled.whole), hidden_exponent, errors)
    rows = product_error(np.matmul, hidden, v)
    unit = 0.5**w.exponent
    update = rows * 0.5**LEARNING_RATE_SHIFT + unit / 2
    taps = update.reshape(layer.c_out, *layer.kernel, layer.c_in).transpose(0, 3, 1, 2)
    return w.error + taps


def _torch_gp_step(
    layer: Convolution, images: Reals, weight: Reals, small: Reals, last: Reals
) -> tuple[Reals, Reals, Reals, Reals]:
    """Outputs, pooled outputs, hidden values and new weights."""
    x, w, c, v = (torch.from_numpy(real) for real in (images, weight, small, last))
    output = functional.conv2d(x, w, stride=layer.stride, padding=layer.padding)
    pooled = functional.adaptive_avg_pool2d(output.mean(0)[:, None], GRID)
    hidden = functional.conv2d(pooled, c, padding=1).relu().flatten(1)
    rows = torch.cat([hidden, torch.ones(len(hidden), 1, dtype=hidden.dtype)], dim=1) @ v
    change = rows.reshape(layer.c_out, *layer.kernel, layer.c_in).permute(0, 3, 1, 2)
    new = w - 2.0**-LEARNING_RATE_SHIFT * change
    return output.numpy(), pooled.numpy(), hidden.numpy(), new.numpy()


def _check(name: str, result: Fixed, expected: Integers, truth: Reals, cycles: int, model_cycles: int) -> Check:
    distance = np.abs(result.real - truth)
    return Check(
        name=name,
        exact=bool((result.whole == expected).all()),
        error=float(distance.max()),
        bound=float(result.error.max()),
        within=bool((distance <= result.error).all()),
        cycles=cycles,
        model_cycles=model_cycles,
    )
