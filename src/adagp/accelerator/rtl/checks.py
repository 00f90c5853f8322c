"""Checks of the hardware: layers with real numbers on the RTL, against the golden model and torch.

Every pass of a convolution and of a linear layer runs in simulation, and a GP step (forward, predictor, update). The
result must equal the golden model's bit by bit. It must lie within the quantisation error of torch's result in 64-bit
floating point. A product must take the accelerator model's cycles plus `OVERHEAD_CYCLES`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from adagp.accelerator.rtl import golden, golden_batch
from adagp.accelerator.rtl.batches import gp_stages, program
from adagp.accelerator.rtl.descriptor import OVERHEAD_CYCLES, Op
from adagp.accelerator.rtl.driver import Product
from adagp.accelerator.rtl.fixed import Fixed, Reals, exponent_for, multiplied, product_error
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.golden import Integers
from adagp.accelerator.rtl.integer_network import IntegerBatch, IntegerNetwork, Shifts
from adagp.accelerator.rtl.lowering import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.top import MAIN
from adagp.accelerator.shapes import Gemm, Pass
from adagp.accelerator.systolic import ws_cycles

CONVOLUTION = Convolution(2, 3, (4, 4), (3, 3), 1, 1)
LINEAR = Convolution(6, 5)
GRID = 2
"""Grid of the predictor in the GP step."""
LEARNING_RATE_SHIFT = 6
"""The GP step's learning rate is 2 to the minus this."""


@dataclass(frozen=True)
class Check:
    """One computation on the RTL.

    Attributes:
        name: What was computed.
        exact: Whether every bit equals the golden model's.
        error: The largest distance from torch's result.
        bound: The largest distance that quantisation allows for any entry.
        within: Whether every entry is as close to torch's as quantisation demands of it.
        cycles: Measured cycles of the array's products.
        model_cycles: The accelerator model's cycles of these products, with the overhead of their descriptors.
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
    core = CoreGeometry(rows, columns, input_depth=2048, weight_depth=2048, output_depth=1024, pools=True)
    bench, rng = Bench({MAIN: core}), np.random.default_rng(seed)
    for name, layer in (("convolution", CONVOLUTION), ("linear", LINEAR)):
        yield from layer_checks(name, layer, bench, rng)
    yield gp_step_check(CONVOLUTION, bench, rng)


def layer_checks(name: str, layer: Convolution, bench: Bench, rng: np.random.Generator, batch: int = 2) -> list[Check]:
    """Check the three passes of a layer with normally distributed numbers."""
    real = [
        torch.from_numpy(rng.normal(size=size)).requires_grad_(needs_grad)
        for size, needs_grad in (
            ((batch, layer.c_in, *layer.image), True),
            ((layer.c_out, layer.c_in, *layer.kernel), True),
            ((batch, layer.c_out, *layer.out), False),
        )
    ]
    images, weight, grads = real
    output = functional.conv2d(images, weight, stride=layer.stride, padding=layer.padding)
    output.backward(grads)
    x, w, g = (Fixed.of(tensor.detach().numpy()) for tensor in real)
    found = []
    for which, left, right, sums, truth, matrix in (
        (
            Pass.FORWARD,
            x.lowered(layer.patches),
            w.lowered(layer.filters),
            golden_batch.forward_sums(layer, x.whole, w.whole),
            output.detach(),
            layer.pixels,
        ),
        (
            Pass.INPUT_GRAD,
            g.lowered(layer.spread),
            w.lowered(layer.turned),
            golden_batch.input_grad_sums(layer, g.whole, w.whole),
            images.grad,
            layer.pixels,
        ),
        (
            Pass.WEIGHT_GRAD,
            x.lowered(lambda values: layer.patches(values).T),
            g.lowered(layer.pixels),
            golden_batch.weight_grad_sums(layer, x.whole, g.whole),
            weight.grad,
            layer.filters,
        ),
    ):
        shift = max(0, int(np.abs(sums).max()).bit_length() - 15)
        whole, cycles = _product(bench, left, right, shift)
        result = multiplied(left, right, whole, shift)
        gemm = layer.shape(batch).gemm(which)
        expected = golden.operands(matrix(sums), shift)
        assert truth is not None
        title = f"{name}, {which.value.replace('_', ' ')}"
        found.append(_check(title, result, expected, matrix(truth.numpy()), cycles, _model_cycles(bench, [gemm])))
    return found


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

    def fresh() -> tuple[IntegerNetwork, IntegerBatch]:
        one = 1 << hidden_exponent
        network = IntegerNetwork([layer], [w.whole.copy()], c.whole.copy(), v.whole.copy(), GRID, one, shifts)
        return network, IntegerBatch({0: x.whole})

    expected, kept = fresh()
    golden_batch.gp_batch(expected, kept)
    network, state = fresh()
    commands = program(gp_stages(network, state, bench.geometries), [MAIN])[MAIN]
    trace = bench.run({MAIN: commands})[MAIN]
    products = [
        cycles for command, cycles in zip(commands, trace.cycles, strict=True) if command.descriptor.op is Op.PRODUCT
    ]
    error = _gp_error(network, state, layer, x, w, c, v, pooled_exponent, hidden_exponent)
    result = Fixed(network.weights[0], w.exponent, error)
    gemms = [
        layer.shape(batch).gemm(Pass.FORWARD),
        Gemm(layer.c_out * GRID**2, 1, 9),
        Gemm(layer.c_out, layer.row, GRID**2 + 1),
    ]
    return _check("GP step", result, expected.weights[0], new, sum(products), _model_cycles(bench, gemms))


def _gp_error(
    network: IntegerNetwork,
    state: IntegerBatch,
    layer: Convolution,
    x: Fixed,
    w: Fixed,
    c: Fixed,
    v: Fixed,
    pooled_exponent: int,
    hidden_exponent: int,
) -> Reals:
    """How far the updated weights may be from torch's: the error bound, carried from product to product."""
    order, run = network.cells(0, state.samples)
    outputs = product_error(x.lowered(layer.patches), w.lowered(layer.filters))[order]
    sums = network.repeated(outputs.reshape(-1, run, layer.c_out).sum(1))
    pooled = Fixed(state.pooled[0], pooled_exponent, sums + 0.5**pooled_exponent / 2)
    taps = c.lowered(lambda values: values.reshape(9, 1))
    hidden = product_error(pooled.lowered(network.predictor_convolution.patches), taps) + 0.5**hidden_exponent / 2
    errors = np.hstack([hidden.reshape(layer.c_out, -1), np.zeros((layer.c_out, 1))])
    rows = product_error(Fixed(state.hidden[0], hidden_exponent, errors), v)
    unit = 0.5**w.exponent
    return w.error + (rows * 0.5**LEARNING_RATE_SHIFT + unit / 2).reshape(w.error.shape)


def _torch_gp_step(
    layer: Convolution, images: Reals, weight: Reals, small: Reals, last: Reals
) -> tuple[Reals, Reals, Reals, Reals]:
    """Outputs, pooled outputs, hidden values and new weights."""
    x, w, c, v = (torch.from_numpy(real) for real in (images, weight, small, last))
    output = functional.conv2d(x, w, stride=layer.stride, padding=layer.padding)
    pooled = functional.adaptive_avg_pool2d(output.mean(0)[:, None], GRID)
    hidden = functional.conv2d(pooled, c, padding=1).relu().flatten(1)
    rows = torch.cat([hidden, torch.ones(len(hidden), 1, dtype=hidden.dtype)], dim=1) @ v
    new = w - 2.0**-LEARNING_RATE_SHIFT * rows.reshape(w.shape)
    return output.numpy(), pooled.numpy(), hidden.numpy(), new.numpy()


def _product(bench: Bench, left: Fixed, right: Fixed, shift: int) -> tuple[Integers, int]:
    """A product on the RTL, and the cycles it took."""
    (m, k), n = left.whole.shape, right.whole.shape[1]
    product = Product(m, k, n, bench.geometries[MAIN])
    found: list[Integers] = []
    commands = [
        product.load_inputs(lambda: left.whole),
        product.load_weights(lambda: right.whole),
        product.multiply(),
        product.drain(shift, found.append),
    ]
    cycles = bench.run({MAIN: commands})[MAIN].cycles
    return found[0], cycles[2]


def _model_cycles(bench: Bench, gemms: Sequence[Gemm]) -> int:
    size = bench.geometries[MAIN]
    return sum(ws_cycles(gemm, size.rows, size.columns) + OVERHEAD_CYCLES for gemm in gemms)


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
