"""GP and BP batches of a small network on every design, against the golden model and the formulas."""

from functools import cache

import numpy as np
import pytest

from adagp.accelerator import Design
from adagp.accelerator.rtl import golden_batch
from adagp.accelerator.rtl.batches import BatchPrograms
from adagp.accelerator.rtl.descriptor import Drain, Memory
from adagp.accelerator.rtl.integer_network import random_network
from adagp.accelerator.rtl.measure import SAMPLES, TIMING, account, run_small, small_batch, small_cores
from adagp.accelerator.rtl.memory_map import MemoryMap
from adagp.accelerator.rtl.tensors import Convolution
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.rtl.verilated import VerilatedBench, has_verilator
from adagp.schedules import Phase

ADA_GP = (Design.LOW, Design.EFFICIENT, Design.MAX)
CASES = [(Design.BASELINE, Phase.BP), *((design, phase) for design in ADA_GP for phase in (Phase.GP, Phase.BP))]


@cache
def run(design, phase):
    return run_small(design, phase)


def assert_as_golden(memory, dram, design, phase):
    """Outputs, weights and predictor are the golden model's; what must change has changed."""
    expected, images, grads = small_batch()
    start = expected.copy()
    learned = phase is Phase.BP and design is not Design.BASELINE
    if phase is Phase.GP:
        done = golden_batch.gp_batch(expected, images)
    else:
        done, _ = golden_batch.bp_batch(expected, images, grads, learns=learned)
    network = memory.read_network(dram)
    np.testing.assert_array_equal(memory.read_outputs(dram), done.outputs)
    for ours, theirs, before in zip(network.weights, expected.weights, start.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert (ours != before).mean() > 0.5
    np.testing.assert_array_equal(network.last, expected.last)
    np.testing.assert_array_equal(network.convolution, expected.convolution)
    assert ((network.last != start.last).mean() > 0.5) == learned
    assert (network.convolution != start.convolution).any() == learned


@pytest.mark.parametrize(("design", "phase"), CASES)
def test_a_batch_leaves_what_the_golden_model_does_and_takes_the_cycles_of_the_formulas(design, phase):
    memory, dram, traces = run(design, phase)
    assert_as_golden(memory, dram, design, phase)
    found = account(design, phase, memory, dram, traces)
    assert found.bit_exact
    assert found.measured == found.model
    assert len({trace.cycles for trace in traces.values()}) == 1  # all cores end at a barrier that joins them


@pytest.mark.parametrize(("design", "phase"), [(Design.EFFICIENT, Phase.BP), (Design.MAX, Phase.GP)])
def test_a_batch_is_exact_when_every_channel_makes_the_other_side_wait(design, phase):
    """In three of ten cycles at random: descriptors and answers come late, requests and writes are not taken."""
    memory, dram, traces = run_small(design, phase, Bench(small_cores(design), TIMING, stalls=0.3, seed=1))
    assert_as_golden(memory, dram, design, phase)
    found = account(design, phase, memory, dram, traces)
    assert found.bit_exact
    assert 1.1 * found.model < found.measured
    words = [(each.read_words, each.written_words) for each in traces.values()]
    assert words == [(each.read_words, each.written_words) for each in run(design, phase)[2].values()]


@pytest.mark.parametrize("phase", [Phase.GP, Phase.BP])
def test_designs_are_in_the_models_order(phase):
    low, efficient, fastest = (account(design, phase, *run(design, phase)) for design in ADA_GP)
    assert low.measured > efficient.measured > fastest.measured
    assert low.no_stalls > efficient.no_stalls > fastest.no_stalls
    predictor = small_batch()[0].last.size  # LOW loads it for every layer; the others once, before the batch
    assert low.moved_words > efficient.moved_words + predictor
    assert low.moved_words > fastest.moved_words + predictor


def test_only_efficient_and_max_update_the_predictor_where_it_stays():
    network, _, _ = small_batch()
    for design in ADA_GP:
        programs = BatchPrograms(design, small_cores(design), MemoryMap(network, SAMPLES)).batch(Phase.BP)
        works = [each for program in programs.values() for each in program.descriptors]
        assert any(isinstance(each, Drain) and each.in_place for each in works) == (design is not Design.LOW)
        streamed = [each for each in works if getattr(each, "memory", None) is Memory.PREDICTOR]
        assert bool(streamed) == (design is not Design.LOW)


@pytest.mark.skipif(not has_verilator(), reason="needs verilator: apt-get install verilator")
@pytest.mark.slow
@pytest.mark.parametrize(("design", "phase"), CASES)
def test_verilator_takes_every_cycle_that_amaranth_does(design, phase):
    memory, dram, traces = run_small(design, phase, VerilatedBench(small_cores(design), TIMING))
    assert traces == run(design, phase)[2]
    np.testing.assert_array_equal(dram, run(design, phase)[1])
    assert_as_golden(memory, dram, design, phase)


def test_the_baseline_has_no_gp_batch():
    memory = MemoryMap(small_batch()[0], SAMPLES)
    with pytest.raises(ValueError, match="phase=gp: the baseline has no predictor"):
        BatchPrograms(Design.BASELINE, small_cores(Design.BASELINE), memory).batch(Phase.GP)


def test_layers_that_do_not_follow_each_other_are_refused():
    with pytest.raises(ValueError, match="does not take what"):
        random_network([Convolution(1, 2, (4, 4)), Convolution(3, 1, (4, 4))], np.random.default_rng(0))
