"""GP and BP batches of a small network on every design, against the golden model and the accelerator model."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'adagp[hardware]'")

from adagp.accelerator import LayerShape, Pass
from adagp.accelerator.rtl import batches, golden_batch
from adagp.accelerator.rtl.descriptor import OVERHEAD_CYCLES, Memory, Op
from adagp.accelerator.rtl.geometry import Geometry
from adagp.accelerator.rtl.lowering import Convolution
from adagp.accelerator.rtl.network import Batch, Network
from adagp.accelerator.rtl.testbench import Bench
from adagp.accelerator.systolic import ws_cycles

LAYERS = (Convolution(1, 3, (4, 4), (3, 3), 1, 1), Convolution(3, 4, (4, 4), (3, 3), 2, 1), Convolution(16, 5))
MAIN = Geometry(4, 3, input_depth=512, weight_depth=256, output_depth=128, pools=True)
DESIGNS = {
    "baseline": {"main": replace(MAIN, pools=False)},
    "low": {"main": MAIN},
    "efficient": {"main": replace(MAIN, predictor_depth=256)},
    "max": {"main": MAIN, "predictor": Geometry(3, 2, input_depth=256, weight_depth=512, output_depth=128)},
}
SAMPLES = 2


def fresh():
    """The same network and batch every time; numbers large enough that some sums are cut."""
    rng = np.random.default_rng(7)

    def values(*size):
        return rng.integers(-3000, 3000, size)

    weights = [values(layer.c_out, layer.c_in, *layer.kernel) for layer in LAYERS]
    network = Network(LAYERS, weights, values(1, 1, 3, 3), values(5, 27))
    return network, Batch({0: values(SAMPLES, 1, 4, 4)}, grads={2: values(SAMPLES, 5, 1, 1)})


def stages_of(design, phase, network, batch):
    if design == "baseline":
        return batches.plain_stages(network, batch, DESIGNS[design])
    build = {"gp": batches.gp_stages, "bp": batches.bp_stages}[phase]
    return build(network, batch, DESIGNS[design])


@cache
def measured(design, phase):
    """Run on the RTL once: the network and batch it left behind, and the cycles."""
    network, batch = fresh()
    predictor = batches.predictor_passes(network, batch, DESIGNS[design])
    cycles = batches.run_batch(Bench(DESIGNS[design]), stages_of(design, phase, network, batch), predictor)
    return network, batch, cycles


CASES = [("baseline", "bp"), *((design, phase) for design in ("low", "efficient", "max") for phase in ("gp", "bp"))]


@pytest.mark.parametrize(("design", "phase"), CASES)
def test_a_batch_leaves_what_the_golden_model_does_and_takes_its_stages_cycles(design, phase):
    network, batch, cycles = measured(design, phase)
    expected, kept = fresh()
    start = fresh()[0]
    if phase == "gp":
        golden_batch.gp_batch(expected, kept)
    else:
        golden_batch.bp_batch(expected, kept, learns=design != "baseline")
    np.testing.assert_array_equal(batch.outputs, kept.outputs)
    for ours, theirs, before in zip(network.weights, expected.weights, start.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert (ours != before).mean() > 0.5
    np.testing.assert_array_equal(network.last, expected.last)
    np.testing.assert_array_equal(network.convolution, expected.convolution)
    learned = phase == "bp" and design != "baseline"
    assert ((network.last != start.last).mean() > 0.5) == learned
    assert (network.convolution != start.convolution).any() == learned
    assert cycles == batches.stages_cycles(stages_of(design, phase, *fresh()), DESIGNS[design])


def model_cycles(geometry, phase, with_layers=True, with_predictor=True):
    """The accelerator model's cycles of all products of a batch on one array."""
    total = 0
    for index, layer in enumerate(LAYERS):
        passes = [Pass.FORWARD] if phase == "gp" else [which for which in Pass if index or which != Pass.INPUT_GRAD]
        if with_layers:
            total += sum(
                ws_cycles(layer.shape(SAMPLES).gemm(which), geometry.rows, geometry.columns) for which in passes
            )
        convolution = LayerShape(1, 1, (2, 2), (3, 3), batch=layer.c_out)
        last = LayerShape(5, layer.row, batch=layer.c_out)
        work = [(convolution, Pass.FORWARD), (last, Pass.FORWARD)]
        if phase == "bp":
            work += [(convolution, Pass.WEIGHT_GRAD), (last, Pass.WEIGHT_GRAD), (last, Pass.INPUT_GRAD)]
        if with_predictor:
            total += sum(ws_cycles(shape.gemm(which), geometry.rows, geometry.columns) for shape, which in work)
    return total


def product_cycles(commands, geometry):
    return sum(command.descriptor.work_cycles(geometry) for command in commands if command.descriptor.op is Op.PRODUCT)


@pytest.mark.parametrize(("design", "phase"), CASES)
def test_the_products_of_a_batch_are_those_that_the_model_counts(design, phase):
    cores = DESIGNS[design]
    programs = batches.program(stages_of(design, phase, *fresh()), list(cores))
    if design == "max":
        assert product_cycles(programs["main"], cores["main"]) == model_cycles(MAIN, phase, with_predictor=False)
        second = cores["predictor"]
        assert product_cycles(programs["predictor"], second) == model_cycles(second, phase, with_layers=False)
    else:
        has_predictor = design != "baseline"
        expected = model_cycles(cores["main"], phase, with_predictor=has_predictor)
        assert product_cycles(programs["main"], cores["main"]) == expected


@pytest.mark.parametrize("phase", ["gp", "bp"])
def test_designs_differ_by_what_they_leave_out(phase):
    low, efficient, fastest = (measured(design, phase)[2] for design in ("low", "efficient", "max"))
    assert low > efficient > fastest
    loads = [
        command.descriptor.count + OVERHEAD_CYCLES
        for index, layer in enumerate(LAYERS)
        for command in batches.predictor_passes(*fresh(), DESIGNS["low"]).predict(index, updates=True)[:2]
    ]
    in_place = efficient_overheads(phase)
    assert low - efficient == sum(loads) - in_place
    sequential = batches.stages_cycles(stages_of("max", phase, *fresh()), DESIGNS["max"])
    assert fastest == sequential


def efficient_overheads(phase):
    """Descriptors that an update in place takes more than one through the outside: one for each further fold."""
    if phase == "gp":
        return 0
    updates = [
        command
        for stage in stages_of("efficient", phase, *fresh())
        for command in stage["main"]
        if command.descriptor.in_place
    ]
    assert {command.descriptor.memory for command in updates} == {Memory.PREDICTOR}
    return OVERHEAD_CYCLES * (len(updates) - 2 * len(LAYERS))


def test_an_output_that_the_grid_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="grid=2: does not divide an output of 3x3"):
        Network([Convolution(1, 1, (3, 3))], [np.ones((1, 1, 1, 1), int)], np.ones((1, 1, 3, 3), int), np.ones((5, 1)))
