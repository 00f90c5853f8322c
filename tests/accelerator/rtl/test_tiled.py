"""The accelerator model with tiles and moves, against the cycles that the RTL takes."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adagp.accelerator import Design, LayerOp, LayerShape, Machine, Pass, batch_kinds, network, simulate
from adagp.accelerator.rtl import tiled
from adagp.accelerator.rtl.dram import Timing
from adagp.accelerator.rtl.layer_run import layer_program
from adagp.accelerator.rtl.no_stalls import layer_ops
from adagp.accelerator.rtl.top import geometries
from adagp.accelerator.rtl.training import CNN, RtlTraining, initial_network
from adagp.schedules import ladder

MOST = 60
"""Cycles of a layer that the model may differ by: loops that the RTL finds already set, and waiting of two cores."""


def rtl_cycles(op, design, phase, machine):
    timing = Timing(machine.dram_words_per_cycle, machine.dram_latency_cycles)
    return layer_program(op, design, phase, geometries(design), timing, grid=machine.predictor.grid).model_cycles


@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from([1, 3]), st.integers(1, 24), st.integers(1, 24), st.sampled_from([1, 2, 4]), st.integers(1, 3),
    st.integers(1, 20), st.integers(1, 40),
)  # fmt: skip
def test_a_layer_takes_the_cycles_of_the_rtl(kernel, c_in, c_out, size, batch, bandwidth, latency):
    shape = LayerShape(c_in, c_out, (size, size), (kernel, kernel), batch=batch)
    assume(kernel <= size + 1)
    op = LayerOp("layer", "convolution", shape, tuple(Pass), covered=True)
    machine = Machine(tiles=True, dram_words_per_cycle=bandwidth, dram_latency_cycles=latency)
    for design, batches in batch_kinds([op], machine).items():
        for found in batches:
            assert abs(found.cycles - rtl_cycles(op, design, found.phase, machine)) <= MOST


@pytest.mark.parametrize("name", ["features.0", "head.2"])
def test_a_layer_of_vgg13_takes_the_cycles_of_the_rtl(name):
    op = next(op for op in network("vgg13", "cifar10", 2) if op.name == name)
    machine = Machine(tiles=True)
    for design, batches in batch_kinds([op], machine).items():
        for found in batches:
            assert abs(found.cycles - rtl_cycles(op, design, found.phase, machine)) <= MOST


def test_a_whole_network_takes_the_cycles_of_the_rtl():
    samples = 4
    ops = layer_ops(CNN, samples)
    for design, batches in batch_kinds(ops, Machine(tiles=True)).items():
        training = RtlTraining(initial_network(CNN, samples, 0), samples, design, geometries(design), Timing())
        for found in batches:
            assert abs(found.cycles - training.model_cycles(found.phase)) <= MOST * len(CNN)


@pytest.mark.parametrize(("name", "samples"), [("features.0", 43), ("features.14", 76)])
def test_many_samples_lie_along_a_line(name, samples, monkeypatch):
    op = next(op for op in network("vgg13", "cifar10", samples) if op.name == name)
    machine = Machine(tiles=True)
    line = tiled.tiled_costs(op, Design.BASELINE, machine)
    monkeypatch.setattr(tiled, "_FEW_SAMPLES", samples)
    tiled._by_samples.cache_clear()
    exact = tiled.tiled_costs(op, Design.BASELINE, machine)
    tiled._by_samples.cache_clear()
    for which in ("forward", "input_grad", "weight_grad"):
        assert getattr(line, which) == pytest.approx(getattr(exact, which), rel=0.03)


def test_many_groups_lie_along_a_line(monkeypatch):
    op = LayerOp("depthwise", "convolution", LayerShape(40, 40, (6, 6), (3, 3), groups=40), tuple(Pass), covered=True)
    machine = Machine(tiles=True)
    found = batch_kinds([op], machine)[Design.BASELINE][0]
    assert abs(found.cycles - rtl_cycles(op, Design.BASELINE, found.phase, machine)) <= MOST


def test_slower_memory_takes_longer_and_never_less_than_no_stalls():
    ops = network("vgg13", "cifar10", 1)[:2]
    cycles = [
        simulate(ops, ladder(2), 4, replace(Machine(tiles=True), dram_words_per_cycle=words)).baseline.cycles
        for words in (1, 4, 16)
    ]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] > 1.2 * cycles[-1] > simulate(ops, ladder(2), 4, Machine()).baseline.cycles


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataflow": "rs"}, "tiles: the RTL has dataflow ws"),
        ({"stalls": True}, "leave stalls"),
        ({"vector_lanes": 4}, "leave stalls"),
    ],
)
def test_what_the_rtl_does_not_have_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Machine(tiles=True, **changes)


def test_a_layer_that_the_rtl_cannot_run_is_named():
    op = LayerOp("products", "matmul", LayerShape(2, 2), tuple(Pass))
    with pytest.raises(ValueError, match="layer products: is a product of two activations"):
        batch_kinds([op], Machine(tiles=True))
