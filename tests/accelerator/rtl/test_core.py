"""The parts of a core alone: descriptors, address generators, sizes, rounding."""

import gc
import re
from fractions import Fraction
from math import floor, prod
from pathlib import Path

import numpy as np
import pytest
from amaranth.sim import Simulator
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from adagp.accelerator import Gemm
from adagp.accelerator.rtl import golden
from adagp.accelerator.rtl.controller import Controller
from adagp.accelerator.rtl.descriptor import (
    DESCRIPTOR_BITS,
    HEADER,
    LAYOUTS,
    LEVELS,
    Drain,
    Level,
    Load,
    Memory,
    Mode,
    Op,
    Product,
    Unit,
)
from adagp.accelerator.rtl.garbage import paused_collection
from adagp.accelerator.rtl.geometry import CoreGeometry, folds
from adagp.accelerator.rtl.nest import Nest
from adagp.accelerator.rtl.program import Loop, Program
from adagp.accelerator.systolic import ws_cycles


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "array=0x15: has no PE"),
        ({"rows": 1, "columns": 1}, "array=1x1"),
        ({"rows": 49}, "array=49x15: has more banks than a descriptor names"),
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


def test_the_documented_bits_of_a_descriptor_are_its_own():
    text = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (\d+)(?:-(\d+))? \| (\w+) \|", text, re.MULTILINE)
    found = {(of, name): (int(low), int(high or low)) for name, low, high, of in documented}
    expected = {("all", name): (field.offset, field.offset + field.width - 1) for name, field in HEADER} | {
        (op.name, name): (field.offset, field.offset + field.width - 1)
        for op, layout in LAYOUTS.items()
        for name, field in layout
        if field.offset >= HEADER.size
    }
    assert found == expected
    for names in (Op, Unit, Memory, Mode):
        assert all(f"{each.value} `{each.name}`" in text for each in names)


def test_a_descriptor_is_128_bits_and_refuses_what_it_cannot_hold():
    assert all(layout.size <= DESCRIPTOR_BITS for layout in LAYOUTS.values())
    whole = Drain(7, 3, shift=5, output_base=9).encode()
    assert 0 < whole < 1 << DESCRIPTOR_BITS
    assert whole & 7 == Op.DRAIN
    assert Level(Unit.ARRAY, 2, stride=-3).encode() < 1 << DESCRIPTOR_BITS
    for wrong, message in (
        (lambda: Product(Memory.INPUTS, 0), "count=0"),
        (lambda: Product(Memory.INPUTS, 1 << 16), "count=65536"),
        (lambda: Drain(0, 1, shift=64), "shift=64"),
        (lambda: Load(Memory.INPUTS, -1, 0, 1, 1), "base=-1"),
        (lambda: Load(Memory.INPUTS, 0, 0, 0, 1), "words=0"),
        (lambda: Level(Unit.ARRAY, 0, stride=1 << 27), "stride=134217728"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_a_token_is_given_once_and_taken_once():
    program = Program()
    first = program.work(Load(Memory.INPUTS, 0, 0, 1, 1), ())
    second = program.work(Load(Memory.WEIGHTS, 0, 0, 1, 1), ())
    product = program.work(Product(Memory.INPUTS, 1), (), [first, second])
    program.work(Product(Memory.INPUTS, 1), (), [first])  # known to be done
    program.work(Load(Memory.INPUTS, 0, 0, 1, 1), (), [product])
    waits = [(each.waits, each.signals) for each in program.descriptors]
    assert waits == [(0, 0), (0, 1 << Unit.ARRAY), (1 << Unit.LOADER, 1), (0, 0), (1 << Unit.ARRAY, 0)]


def test_only_changed_loops_are_set_again():
    program = Program()
    for count in (3, 3, 4):
        program.work(Load(Memory.INPUTS, 0, 0, 1, 1), (Loop(count, 1), Loop(2, 9)))
    assert [type(each).__name__ for each in program.descriptors] == ["Level", "Level", "Load", "Load", "Level", "Load"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(-9, 9), st.integers(0, 2), st.integers(0, 3)), max_size=LEVELS)
)
def test_an_address_generator_goes_through_its_loops_and_starts_again(loops):
    nest, found = Nest(10), []
    whole = [*loops, *[(1, 0, 0, 1)] * (LEVELS - len(loops))]
    counts = [count for count, *_ in whole]

    async def machine(context):
        context.set(nest.configures, 1)
        for level, (count, stride, low, high) in enumerate(whole):
            bits = Level(Unit.LOADER, level, count, stride, low, high).encode()
            context.set(nest.level.as_value(), bits)
            await context.tick()
        context.set(nest.configures, 0)
        context.set(nest.base, 100)
        context.set(nest.starts, 1)
        await context.tick()
        context.set(nest.starts, 0)
        context.set(nest.steps, 1)
        for _ in range(2 * prod(counts)):
            found.append(tuple(context.get(each) for each in (nest.address, nest.inside, nest.at_end)))
            await context.tick()

    simulator = Simulator(nest)
    simulator.add_clock(1e-6)
    simulator.add_testbench(machine)
    simulator.run()
    expected = []
    for index in np.ndindex(*counts[::-1]):
        steps = index[::-1]
        address = 100 + sum(step * stride for step, (_, stride, *_) in zip(steps, whole, strict=True))
        inside = all(low <= step < high for step, (_, _, low, high) in zip(steps, whole, strict=True))
        at_end = sum(
            (step == count - 1) << place for place, (step, count) in enumerate(zip(steps, counts, strict=True))
        )
        expected.append((address % 1024, int(inside), at_end))
    assert found == 2 * expected


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
@example(12, 15, 128, 27, 64)
def test_the_controller_takes_the_accelerator_models_cycles_and_three(rows, columns, m, k, n):
    """On larger arrays than could be clocked."""
    assume(rows * columns > 1)
    assume(ws_cycles(Gemm(m, n, k), rows, columns) < 3000)
    control, cycles = Controller(CoreGeometry(rows, columns)), []
    product = Product(Memory.INPUTS, m, folds(k, rows), folds(n, columns))

    async def machine(context):
        context.set(control.commands.payload, product.encode())
        context.set(control.commands.valid, 1)
        await context.tick()
        context.set(control.commands.valid, 0)
        cycles.append(1)
        while not context.get(control.idle):
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


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_while_compiling_and_is_as_before_then(enabled, monkeypatch):
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    calls = []
    monkeypatch.setattr(gc, "disable", lambda: calls.append("disable"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("enable"))

    @paused_collection()
    def refuse():
        assert calls == ["disable"]
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse()
    assert calls == ["disable", *(["enable"] if enabled else [])]
