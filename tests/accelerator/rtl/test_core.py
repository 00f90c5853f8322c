"""One core in simulation against the golden model: every command, on random sizes and numbers, bit by bit."""

import re
from contextlib import nullcontext
from fractions import Fraction
from functools import cache
from math import floor
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

from adagp.accelerator import Gemm
from adagp.accelerator.rtl import golden, pe
from adagp.accelerator.rtl.controller import Controller
from adagp.accelerator.rtl.descriptor import LAYOUT, OVERHEAD_CYCLES, Descriptor, Memory, Mode, Op
from adagp.accelerator.rtl.driver import Product
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.systolic import ws_cycles

SMALL = {"input_depth": 64, "weight_depth": 256, "output_depth": 64}
GEOMETRIES = (
    CoreGeometry(3, 2, **SMALL, pools=True),
    CoreGeometry(2, 3, **SMALL, pools=True, predictor_depth=256),
    CoreGeometry(1, 2, **SMALL),
    CoreGeometry(2, 1, **SMALL, width=8, sum_width=20),
    CoreGeometry(4, 4, **SMALL, width=5, sum_width=10, pools=True),
)


@cache
def bench_of(geometry):
    """Elaborated once; each case starts from reset."""
    return Bench({"main": geometry})


@st.composite
def products(draw, geometries=GEOMETRIES):
    """Sizes that the small buffers hold, and operands of any magnitude, with extremes more often than chance has it.

    Sums of large operands are cut when they are drained; only those of small ones show the lowest bits.
    """
    geometry = draw(st.sampled_from(geometries))
    k, n = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    m = draw(st.integers(1, min(8, geometry.input_depth // -(-k // geometry.rows))))
    memory = Memory.PREDICTOR if geometry.predictor_depth and draw(st.booleans()) else Memory.WEIGHTS
    product = Product(m, k, n, geometry, memory, weight_base=draw(st.integers(0, 5)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = 1 << (geometry.width - 1)
    limit = 1 << draw(st.integers(1, geometry.width - 1))
    inputs, weights = (rng.integers(-limit, limit, size) for size in ((m, k), (k, n)))
    if draw(st.booleans()):
        inputs[rng.random(inputs.shape) < 0.5] = -most
        weights[rng.random(weights.shape) < 0.5] = draw(st.sampled_from([-most, most - 1]))
    return product, inputs, weights, rng


PRODUCTS_AND_MODES = (products(), st.sampled_from(Mode), st.integers(0, 20))


def run(product, commands):
    """Run commands on the product's core; every one must take the cycles it is said to take."""
    trace = bench_of(product.geometry).run({"main": commands})["main"]
    assert trace.cycles == [command.descriptor.cycles(product.geometry) for command in commands]
    assert trace.total_cycles == sum(trace.cycles)
    return trace


def multiplied(product, inputs, weights):
    return [product.load_inputs(lambda: inputs), product.load_weights(lambda: weights), product.multiply()]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(*PRODUCTS_AND_MODES)
def test_a_product_is_the_golden_one_in_every_mode_and_takes_the_models_cycles(case, mode, shift):
    product, inputs, weights, rng = case
    size = product.geometry
    most = 1 << (size.width - 1)
    old = rng.integers(-most, most, (product.m, product.n))
    found = []
    wants_old = mode in (Mode.UPDATE, Mode.MASK)
    commands = [
        *multiplied(product, inputs, weights),
        product.drain(shift, found.append, mode, (lambda: old) if wants_old else None),
    ]
    trace = run(product, commands)
    sums = golden.product(inputs, weights, size.sum_width)
    expected = {
        Mode.PLAIN: golden.operands(sums, shift, size.width),
        Mode.RELU: golden.relu(sums, shift, size.width),
        Mode.UPDATE: golden.updated(old, sums, shift, size.width),
        Mode.MASK: golden.masked(old, sums, shift, size.width),
    }
    np.testing.assert_array_equal(found[0], expected[mode])
    gemm = Gemm(product.m, product.n, product.k)
    assert trace.cycles[2] == ws_cycles(gemm, size.rows, size.columns) + OVERHEAD_CYCLES


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products([size for size in GEOMETRIES if size.pools]), st.integers(0, 12), st.data())
def test_runs_are_pooled_between_the_rows_they_are_made_of(case, shift, data):
    product, inputs, weights, _ = case
    size = product.geometry
    run_length = data.draw(st.sampled_from([d for d in range(1, product.m + 1) if product.m % d == 0]))
    found, pooled, again = [], [], []
    commands = [
        *multiplied(product, inputs, weights),
        product.drain(0, lambda rows: None),  # what is drained without pooling must leave no trace in the runs
        product.drain_pooled(shift, found.append, Mode.RELU, run_length, 3, pooled.append),
        product.drain_pooled(shift, again.append, Mode.RELU, run_length, 3, pooled.append),
    ]
    run(product, commands)
    sums = golden.product(inputs, weights, size.sum_width)
    for results, runs in zip([*found, *again], pooled, strict=True):
        np.testing.assert_array_equal(results, golden.relu(sums, shift, size.width))
        np.testing.assert_array_equal(runs, golden.pooled(sums, run_length, 3, size.width, size.sum_width))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products(), st.integers(0, 12))
def test_weights_are_updated_in_place_and_used_again(case, shift):
    """The gradient of the weights has their size: M rows of it are the K rows of what they are multiplied by later."""
    gradient, inputs, weights, rng = case
    size = gradient.geometry
    most = 1 << (size.width - 1)
    old, after = rng.integers(-most, most, (gradient.m, gradient.n)), rng.integers(-most, most, (3, gradient.m))
    forward = Product(3, gradient.m, gradient.n, size, gradient.memory, gradient.weight_base + gradient.weight_rows)
    given_back, found = [], []
    commands = [
        forward.load_weights(lambda: old),
        *multiplied(gradient, inputs, weights),
        *gradient.update_in_place(shift, given_back.append, forward.memory, forward.weight_base),
        forward.load_inputs(lambda: after),
        forward.multiply(),
        forward.drain(0, found.append),
    ]
    run(gradient, commands)
    new = golden.updated(old, golden.product(inputs, weights, size.sum_width), shift, size.width)
    np.testing.assert_array_equal(given_back[0], new)
    np.testing.assert_array_equal(found[0], golden.operands(golden.product(after, new, size.sum_width), 0, size.width))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products(), st.integers(0, 12))
def test_a_product_cut_along_k_accumulates(case, shift):
    product, inputs, weights, _ = case
    size = product.geometry
    found = []
    twice = [*multiplied(product, inputs, weights), product.multiply(accumulate=True)]
    run(product, [*twice, product.drain(shift, found.append)])
    sums = golden.wrapped(2 * golden.product(inputs, weights, size.sum_width).astype(object), size.sum_width)
    np.testing.assert_array_equal(found[0], golden.operands(sums, shift, size.width))


class BrokenPE(pe.PE):
    """The true one but for a fault, if one is named."""

    fault = ""

    def elaborate(self, platform):
        m = Module()
        weight, total = Signal.like(self.weight_below), Signal.like(self.sum_above)
        above = self.sum_above & ~1 if self.fault == "loses a carry" else self.sum_above
        factors = {"has no sign": self.input_left.as_unsigned(), "is too narrow": self.input_left[:-1].as_signed()}
        with m.If(~self.load if self.fault == "loads at the wrong time" else self.load):
            m.d.sync += weight.eq(self.weight_below)
        m.d.sync += [
            self.input_right.eq(self.input_left),
            total.eq(above + factors.get(self.fault, self.input_left) * weight),
        ]
        m.d.comb += [self.weight_above.eq(weight), self.sum_below.eq(total)]
        return m


@pytest.mark.parametrize("fault", ["", "loses a carry", "has no sign", "is too narrow", "loads at the wrong time"])
def test_a_broken_pe_fails_the_random_products(fault, monkeypatch):
    monkeypatch.setattr(BrokenPE, "fault", fault)
    monkeypatch.setattr("adagp.accelerator.rtl.systolic_array.PE", BrokenPE)
    random = test_a_product_is_the_golden_one_in_every_mode_and_takes_the_models_cycles.hypothesis.inner_test
    runs = settings(max_examples=100 if fault else 10, deadline=None, database=None, phases=[Phase.generate])
    again = runs(given(*PRODUCTS_AND_MODES)(random))
    bench_of.cache_clear()
    try:
        with pytest.raises(AssertionError) if fault else nullcontext():
            again()
    finally:
        bench_of.cache_clear()


def test_words_that_come_late_are_waited_for():
    product = Product(3, 2, 2, GEOMETRIES[0])
    inputs, weights = np.arange(6).reshape(3, 2), np.arange(4).reshape(2, 2)
    found = []
    commands = [*multiplied(product, inputs, weights), product.drain(0, found.append, Mode.UPDATE, lambda: inputs)]
    bench = Bench({"main": GEOMETRIES[0]}, words_every=3)
    cycles = bench.run({"main": commands})["main"].cycles
    assert found[0].tolist() == golden.updated(inputs, golden.product(inputs, weights), 0).tolist()
    assert cycles[0] > commands[0].descriptor.cycles(GEOMETRIES[0])
    assert cycles[2] == commands[2].descriptor.cycles(GEOMETRIES[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "array=0x15: has no PE"),
        ({"rows": 1, "columns": 1}, "array=1x1"),
        ({"rows": 1 << 16}, "array=65536x15: takes longer to cross than the controller can count"),
        ({"width": 1}, "width=1"),
        ({"sum_width": 31}, "sum_width=31: does not hold one product"),
        ({"sum_width": 65}, "sum_width=65"),
        ({"input_depth": 1}, "input_depth=1"),
        ({"weight_depth": 1 << 17}, "weight_depth=131072"),
    ],
)
def test_what_cannot_be_built_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        CoreGeometry(**changes)


def test_a_product_that_does_not_fit_is_refused_with_the_memory_it_needs():
    size = CoreGeometry(3, 2, **SMALL)
    for sizes, memory in (
        ((65, 3, 2), "input_depth=64"),
        ((1, 180, 3), "weight_depth=256"),
        ((33, 3, 3), "output_depth=64"),
    ):
        with pytest.raises(ValueError, match=f"{memory}: a product of .* needs"):
            Product(*sizes, size)
    with pytest.raises(ValueError, match="predictor_depth=0"):
        Product(1, 3, 2, size, Memory.PREDICTOR)


def test_the_documented_bits_of_a_descriptor_are_its_own():
    text = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (\d+)(?:-(\d+))? \|", text, re.MULTILINE)
    bits = [(name, field.offset, field.offset + field.width - 1) for name, field in LAYOUT]
    assert [(name, int(low), int(high or low)) for name, low, high in documented] == bits
    for names in (Op, Memory, Mode):
        assert all(f"{each.value} `{each.name}`" in text for each in names)


def test_a_descriptor_is_128_bits_and_refuses_what_it_cannot_hold():
    whole = Descriptor(Op.DRAIN, 7, shift=5, pool_run=9, output_base=3).encode()
    assert 0 < whole < 1 << 128
    assert whole & 3 == Op.DRAIN
    for field, value in (("count", 0), ("count", 1 << 16), ("shift", 64), ("n_folds", 4096), ("input_base", -1)):
        with pytest.raises(ValueError, match=f"{field}={value}"):
            Descriptor(**{"op": Op.LOAD, "count": 1, field: value})


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.integers(1, 11), st.integers(1, 11))
def test_cycles_are_the_models_and_three_on_any_array(rows, columns, m, k, n):
    assume(rows * columns > 1)
    size = CoreGeometry(rows, columns, width=4, sum_width=12, input_depth=128, weight_depth=256, output_depth=128)
    product = Product(m, k, n, size)
    trace = Bench({"main": size}).run({"main": [product.multiply()]})["main"]
    assert trace.cycles == [ws_cycles(Gemm(m, n, k), rows, columns) + 3]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
@example(12, 15, 128, 27, 64)
def test_the_controller_alone_takes_the_models_cycles_and_three_on_larger_arrays(rows, columns, m, k, n):
    """As far as it decides them, so that arrays need not be clocked that take long to."""
    assume(rows * columns > 1)
    assume(ws_cycles(Gemm(m, n, k), rows, columns) < 3000)
    size = CoreGeometry(rows, columns)
    control, cycles = Controller(size), []

    async def machine(context):
        context.set(control.descriptor.as_value(), Product(m, k, n, size).multiply().descriptor.encode())
        context.set(control.valid, 1)
        await context.tick()
        context.set(control.valid, 0)
        cycles.append(1)
        while context.get(control.busy):
            await context.tick()
            cycles[0] += 1

    simulator = Simulator(control)
    simulator.add_clock(1e-6)
    simulator.add_testbench(machine)
    simulator.run()
    assert cycles == [ws_cycles(Gemm(m, n, k), rows, columns) + 3]


@settings(deadline=None)
@given(st.integers(-(2**47), 2**47 - 1), st.integers(0, 63), st.integers(2, 16))
def test_the_golden_model_rounds_halves_upwards_and_cuts(value, shift, width):
    exact = floor(Fraction(value, 2**shift) + Fraction(1, 2))
    cut = min(max(exact, -(2 ** (width - 1))), 2 ** (width - 1) - 1)
    assert golden.operands(np.array([value]), shift, width).tolist() == [cut]
