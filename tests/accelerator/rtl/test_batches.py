"""GP and BP batches of a small network on every design, against the golden model and the accelerator model."""

from functools import cache

import numpy as np
import pytest

from adagp.accelerator import (
    Design,
    Machine,
    Pass,
    backward_cycles,
    batch_steps,
    batch_tasks,
    network,
    network_costs,
)
from adagp.accelerator.rtl import batches, golden_batch
from adagp.accelerator.rtl.descriptor import OVERHEAD_CYCLES, Memory, Op
from adagp.accelerator.rtl.integer_network import IntegerNetwork
from adagp.accelerator.rtl.lowering import Convolution
from adagp.accelerator.rtl.measure import (
    LAYERS,
    account,
    batch_stages,
    measure,
    model_cycles,
    small_batch,
    small_cores,
    small_model,
)
from adagp.accelerator.rtl.testbench import Bench
from adagp.schedules import Phase
from adagp.schedules.plan import BACKPROP
from tests.accelerator.rtl.golden_bp import bp_batch

ADA_GP = (Design.LOW, Design.EFFICIENT, Design.MAX)
CASES = [(Design.BASELINE, Phase.BP), *((design, phase) for design in ADA_GP for phase in (Phase.GP, Phase.BP))]


def stages_of(design, phase, seed=0):
    return batch_stages(design, phase, *small_batch(seed), small_cores(design))


def commands_of(design, phase):
    return [command for stage in stages_of(design, phase) for commands in stage.values() for command in commands]


@cache
def run(design, phase):
    """On the RTL: the network and batch it left behind, and the cycles."""
    cores, (network, batch) = small_cores(design), small_batch()
    stages = batch_stages(design, phase, network, batch, cores)
    cycles = batches.run_batch(Bench(cores), stages, batches.predictor_passes(network, batch, cores))
    return network, batch, cycles


@pytest.mark.parametrize(("design", "phase"), CASES)
def test_a_batch_leaves_what_the_golden_model_does_and_takes_its_stages_cycles(design, phase):
    network, batch, cycles = run(design, phase)
    expected, kept = small_batch()
    learned = phase is Phase.BP and design is not Design.BASELINE
    if phase is Phase.GP:
        golden_batch.gp_batch(expected, kept)
    else:
        bp_batch(expected, kept, learns=learned)
    np.testing.assert_array_equal(batch.outputs, kept.outputs)
    start, _ = small_batch()
    for ours, theirs, before in zip(network.weights, expected.weights, start.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert (ours != before).mean() > 0.5
    np.testing.assert_array_equal(network.last, expected.last)
    np.testing.assert_array_equal(network.convolution, expected.convolution)
    assert ((network.last != start.last).mean() > 0.5) == learned
    assert (network.convolution != start.convolution).any() == learned
    assert cycles == batches.stages_cycles(stages_of(design, phase), small_cores(design))


@pytest.mark.parametrize("design", [Design.BASELINE, Design.EFFICIENT])
def test_the_products_of_a_batch_are_those_that_the_model_counts(design):
    for phase in (Phase.GP, Phase.BP):
        if (design, phase) in CASES:
            core = small_cores(design)["main"]
            products = [each.descriptor for each in commands_of(design, phase) if each.descriptor.op is Op.PRODUCT]
            assert sum(each.work_cycles(core) for each in products) == model_cycles(design, phase)


def products_of(stages, cores):
    """The array's cycles on each core in each stage."""
    return [
        {
            unit: sum(each.descriptor.work_cycles(cores[unit]) for each in commands if each.descriptor.op is Op.PRODUCT)
            for unit, commands in stage.items()
        }
        for stage in stages
    ]


def test_in_max_the_products_of_a_stage_are_the_models_on_both_arrays():
    """The model would also let the first array predict where it is sooner done; its weights are in the second core."""
    parts = network_costs(*small_model())
    forward = [layer.cycles(Pass.FORWARD) for layer in parts]
    predict = [layer.second_predictor.predict_cycles for layer in parts]
    found = products_of(stages_of(Design.MAX, Phase.GP), small_cores(Design.MAX))
    assert found == [
        {"main": forward[0]},
        {"main": forward[1], "predictor": predict[0]},
        {"main": forward[2], "predictor": predict[1]},
        {"predictor": predict[2]},
    ]
    assert sum(max(stage.values()) for stage in found) == sum(forward[:1] + predict) == 647
    assert model_cycles(Design.MAX, Phase.GP) == 640


def waiting_backward(ops, machine):
    """Each layer's backward beside the learning of the layer that came before it, whose gradient is there by then."""
    tasks = batch_tasks(ops, BACKPROP, learning=True)
    tasks = list(zip(network_costs(ops, machine), tasks, strict=True))[::-1]
    back = [backward_cycles(layer, task, machine) for layer, task in tasks]
    learn = [layer.second_predictor.learn_cycles if task.learn else 0 for layer, task in tasks]
    return list(zip([*back, 0], [0, *learn], strict=True))


def test_in_max_learning_waits_for_the_gradient_which_the_model_does_not():
    """Model and paper let it run beside the same layer's backward, but the true gradient is made there."""
    stages = products_of(stages_of(Design.MAX, Phase.BP), small_cores(Design.MAX))
    assert stages[:4] == products_of(stages_of(Design.MAX, Phase.GP), small_cores(Design.MAX))
    backward = [(stage.get("main", 0), stage.get("predictor", 0)) for stage in stages[4:]]
    assert backward == waiting_backward(*small_model()) == [(86, 0), (341, 342), (144, 321), (0, 172)]
    found = account(Design.MAX, Phase.BP, run(Design.MAX, Phase.BP)[2])
    assert found.measured == found.products + found.moves + found.descriptors
    assert (found.products, found.model) == (1567, 1445)


@pytest.mark.parametrize("batch", [16, 128])
def test_in_networks_of_the_papers_size_it_does_not_matter_that_learning_waits(batch):
    ops, machine = network("vgg13", "cifar10", batch=batch), Machine()
    tasks = batch_tasks(ops, BACKPROP, learning=True)
    steps = batch_steps(Design.MAX, network_costs(ops, machine), tasks, machine)
    backward = sum(step.cycles for step in steps if step.stage == "backward")
    waiting = sum(max(pair) for pair in waiting_backward(ops, machine))
    assert abs(waiting - backward) < 2e-5 * sum(step.cycles for step in steps)


@pytest.mark.parametrize("phase", [Phase.GP, Phase.BP])
def test_designs_are_in_the_models_order_and_low_pays_for_its_loads(phase):
    """LOW loads the words that the model counts, filled up to whole folds as the array takes them."""
    low, efficient, fastest = (run(design, phase)[2] for design in ADA_GP)
    assert low > efficient > fastest
    ops, machine = small_model()
    gemms = [layer.gemm(Pass.FORWARD) for op in ops for layer in machine.predictor.layers(op)]
    rows, columns = machine.array.rows, machine.array.columns
    loads = sum(-(-gemm.k // rows) * rows * -(-gemm.n // columns) + OVERHEAD_CYCLES for gemm in gemms)
    in_place = [each.descriptor for each in commands_of(Design.EFFICIENT, phase) if each.descriptor.in_place]
    assert {each.memory for each in in_place} <= {Memory.PREDICTOR}
    further = OVERHEAD_CYCLES * (len(in_place) - 2 * len(LAYERS)) if in_place else 0  # one descriptor for each fold
    assert low - efficient == loads - further
    assert model_cycles(Design.LOW, phase) > model_cycles(Design.EFFICIENT, phase) > model_cycles(Design.MAX, phase)


def test_measuring_runs_the_batch_and_tells_what_it_was_spent_on():
    found = measure(Design.BASELINE, Phase.BP)
    assert found == account(Design.BASELINE, Phase.BP, run(Design.BASELINE, Phase.BP)[2])
    assert found.products == found.model
    assert found.measured == found.products + found.moves + found.descriptors


def test_the_baseline_has_no_gp_batch():
    with pytest.raises(ValueError, match="phase=GP: the baseline has no predictor"):
        stages_of(Design.BASELINE, Phase.GP)


def test_an_output_that_the_grid_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="grid=2: does not divide an output of 3x3"):
        IntegerNetwork(
            [Convolution(1, 1, (3, 3))], [np.ones((1, 1, 1, 1), int)], np.ones((1, 1, 3, 3), int), np.ones((5, 1))
        )
