"""Random layers, cut into tiles, on small cores: every bit, and every cycle, at any speed of DRAM."""

from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st

from adagp.accelerator import Pass
from adagp.accelerator.rtl import pe
from adagp.accelerator.rtl.cycles import program_cycles
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.verilated import VerilatedBench, has_verilator
from tests.accelerator.rtl.passes import PassCase

CORES = (
    CoreGeometry(2, 2, input_depth=256, weight_depth=64, output_depth=16, old_depth=32),
    CoreGeometry(3, 2, width=8, sum_width=20, input_depth=256, weight_depth=64, output_depth=8, old_depth=16),
    CoreGeometry(1, 3, width=5, sum_width=10, input_depth=256, weight_depth=64, output_depth=32, old_depth=64),
)
LARGER = CoreGeometry(4, 3, input_depth=256, weight_depth=128, output_depth=32, old_depth=64)
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@contextmanager
def left_out(message):
    """Leave out what is refused with this message; nothing else may be refused."""
    try:
        yield
    except ValueError as error:
        assume(message not in str(error))
        raise


@st.composite
def layers(draw, most=3, image=4):
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    small, pairs = st.integers(1, most), st.tuples(st.integers(1, 3), st.integers(1, 3))
    sizes = st.tuples(st.integers(1, image), st.integers(1, image))
    with left_out("is larger than image"):
        return Convolution(
            groups * draw(small),
            groups * draw(small),
            draw(sizes),
            draw(pairs),
            draw(pairs),
            draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
            draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
            groups,
        )


TIMINGS = st.builds(Timing, st.integers(1, 6), st.integers(1, 9))


@cache
def bench_of(core):
    """Elaborated once; each case starts from reset."""
    return Bench({"main": core})


def check(case, bench):
    """The RTL computes what it should, moves the words and takes the cycles of the formulas."""
    found = bench.run(case.programs, case.dram)["main"]
    np.testing.assert_array_equal(case.result, case.expected)
    expected = program_cycles({"main": case.builder.program}, bench.cores, bench.timing)["main"]
    assert (found.read_words, found.written_words) == (expected.read_words, expected.written_words)
    assert found.cycles == expected.cycles


def case_of(core, layer, which, samples, seed, most_cycles=900):
    with left_out("does not fit the buffers"):  # which are tiny
        case = PassCase(layer, which, samples, core, seed)
    found = program_cycles({"main": case.builder.program}, {"main": core}, Timing())["main"]
    assume(found.cycles < most_cycles)
    return case


RANDOM = (
    st.sampled_from(CORES), layers(), st.sampled_from(Pass), st.integers(1, 3), st.integers(0, 2**32 - 1), TIMINGS
)  # fmt: skip


@settings(QUICK, max_examples=40)
@given(*RANDOM)
def test_any_pass_of_any_layer_is_exact_and_takes_the_cycles_of_the_formulas(core, layer, which, samples, seed, timing):
    bench = bench_of(core)
    bench.timing, bench.stalls = timing, 0.0
    check(case_of(core, layer, which, samples, seed), bench)


@settings(QUICK, max_examples=10)
@given(*RANDOM[:-1])
def test_no_word_is_lost_when_every_channel_makes_the_core_wait(core, layer, which, samples, seed):
    bench, case = bench_of(core), case_of(core, layer, which, samples, seed, most_cycles=400)
    bench.timing, bench.stalls, bench.seed = Timing(2, 3), 0.5, seed
    found = bench.run(case.programs, case.dram)["main"]
    np.testing.assert_array_equal(case.result, case.expected)
    expected = program_cycles({"main": case.builder.program}, bench.cores, bench.timing)["main"]
    assert found.cycles >= expected.cycles
    assert (found.read_words, found.written_words) == (expected.read_words, expected.written_words)


@pytest.mark.slow
@pytest.mark.skipif(not has_verilator(), reason="needs verilator: apt-get install verilator")
@settings(QUICK, max_examples=150)
@given(layers(9, 9), st.sampled_from(Pass), st.integers(1, 6), st.integers(0, 2**32 - 1), TIMINGS)
def test_larger_layers_are_exact_in_verilator(layer, which, samples, seed, timing):
    bench = verilated()
    bench.timing = timing
    check(case_of(LARGER, layer, which, samples, seed, most_cycles=300_000), bench)


@cache
def verilated():
    return VerilatedBench({"main": LARGER})


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
def test_a_broken_pe_fails_a_layer(fault, monkeypatch):
    monkeypatch.setattr(BrokenPE, "fault", fault)
    monkeypatch.setattr("adagp.accelerator.rtl.systolic_array.PE", BrokenPE)
    core = CORES[0]
    bench, equal = Bench({"main": core}), True
    for limit, shift in ((1 << 15, 18), (8, 0)):  # only small sums show the lowest bits
        case = PassCase(Convolution(3, 3, (2, 2)), Pass.FORWARD, 2, core, limit=limit, shift=shift)
        bench.run(case.programs, case.dram)
        equal = equal and np.array_equal(case.result, case.expected)
    assert equal == (not fault)


@settings(QUICK, max_examples=60, phases=[HypothesisPhase.generate])
@given(st.sampled_from(CORES), layers(12, 12), st.sampled_from(Pass), st.integers(1, 9))
def test_no_tile_leaves_its_buffers(core, layer, which, samples):
    """Addresses and counts by formula alone: what a program writes and reads lies inside of the memories."""
    with left_out("does not fit the buffers"):
        case = PassCase(layer, which, samples, core)
    half = {"INPUTS": core.input_depth, "WEIGHTS": core.weight_depth, "OLD": core.old_depth}
    for index, each in enumerate(case.builder.program.descriptors):
        name = type(each).__name__
        if name == "Load":
            beats = np.prod([loop.count for loop in case.builder.program.loops[index]])
            words = beats * (each.words if each.column else 1)
            size = half[each.memory.name] // 2
            assert each.to // size == (each.to + words - 1) // size
        if name == "Product":
            counts = [loop.count for loop in case.builder.program.loops[index]]
            assert (np.prod(counts[:3]), np.prod(counts[3:])) == (each.count, each.k_folds)
            assert each.count * each.n_folds <= core.output_depth
        if name == "Drain":
            assert each.count == np.prod([loop.count for loop in case.builder.program.loops[index]])


def test_a_layer_that_no_tile_fits_is_refused_with_the_buffers():
    core = CoreGeometry(2, 2, input_depth=8, weight_depth=8, output_depth=4, old_depth=8)
    for which in Pass:
        with pytest.raises(ValueError, match=r"does not fit the buffers \(input_depth=8"):
            PassCase(Convolution(2, 2, (1, 40), (1, 3)), which, 1, core)


def test_a_kernel_larger_than_its_image_is_refused():
    with pytest.raises(ValueError, match="kernel=3x3: is larger than image=2x4"):
        Convolution(1, 1, (2, 4), (3, 3))
    with pytest.raises(ValueError, match="groups=2: does not divide c_in=3"):
        Convolution(3, 4, groups=2)
