import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.accelerator import (
    DATAFLOWS,
    Array,
    Design,
    LayerOp,
    LayerShape,
    Machine,
    Pass,
    PredictorShape,
    network,
    paper_schedule,
    pass_cost,
    simulate,
    simulation,
)
from adagp.accelerator.array_tasks import ArrayTask, batch_tasks
from adagp.accelerator.designs import batch_steps
from adagp.accelerator.layer_costs import PredictorCost, network_costs
from adagp.schedules import Phase, Plan, always_backprop, approximation, fixed, from_function, ladder
from adagp.schedules.plan import BACKPROP, WARMUP

GP = Plan(Phase.GP, "predicted")


def square(name, size=60):
    """A layer whose three passes take equally long."""
    return LayerOp(name, "linear", LayerShape(size, size, batch=size), tuple(Pass), covered=True)


def with_predictor(parts, share):
    """The same layers with a predictor that takes this share of a forward, and twice that to learn."""
    cost = PredictorCost(share * parts.cycles(Pass.FORWARD), 2 * share * parts.cycles(Pass.FORWARD), 0, 0)
    return dataclasses.replace(parts, predictor=cost, second_predictor=cost)


def total(design, ops, plan, machine, learning=True, share=None):
    layers = network_costs(ops, machine)
    if share is not None:
        layers = [with_predictor(layer, share) for layer in layers]
    return sum(step.cycles for step in batch_steps(design, layers, batch_tasks(ops, plan, learning), machine))


def test_timelines_of_figures_7_to_9():
    ops = [square(f"layer{place}") for place in range(1, 5)]
    unit = pass_cost(ops[0].shape, Pass.FORWARD, Array(), "ws").cycles
    alpha, machine = 0.125, Machine()
    assert total(Design.BASELINE, ops, BACKPROP, machine, learning=False) == 12 * unit
    assert total(Design.EFFICIENT, ops, WARMUP, machine, share=alpha) == (12 + 12 * alpha) * unit
    assert total(Design.EFFICIENT, ops, BACKPROP, machine, share=alpha) == (12 + 12 * alpha) * unit
    assert total(Design.EFFICIENT, ops, GP, machine, share=alpha) == (4 + 4 * alpha) * unit
    # Only the last layer's prediction has no layer left to run beside.
    assert total(Design.MAX, ops, GP, machine, share=alpha) == (4 + alpha) * unit
    assert total(Design.MAX, ops, BACKPROP, machine, share=alpha) == (12 + alpha) * unit
    # A predictor slower than the layers sets the pace.
    assert total(Design.MAX, ops, GP, machine, share=3) == (1 + 4 * 3) * unit


@pytest.mark.parametrize("epochs", [22, 40, 90, 200])
@pytest.mark.parametrize("share", [0, 0.125])
def test_speed_up_follows_the_schedules_algebra_where_backward_is_two_forwards(epochs, share, monkeypatch):
    real = simulation.network_costs
    monkeypatch.setattr(
        simulation, "network_costs", lambda *given: [with_predictor(layer, share) for layer in real(*given)]
    )
    runs = simulate([square("a"), square("b")], *paper_schedule(epochs))
    speed_up = runs[Design.BASELINE].cycles / runs[Design.EFFICIENT].cycles
    # 4 epochs each of 4/5, 3/4 and 2/3 GP, ten of none, the others half: BP 3 units, GP 1.
    assert speed_up == pytest.approx(3 * epochs / ((1 + share) * (2 * epochs + 4 + 4 / 15)))
    assert pytest.approx(4.267, abs=1e-3) == 4 + 4 / 15


def by_hand(ops, schedule, steps, design, machine):
    """A second way to the cycles: every step of the schedule, every pass by its formula."""

    def cost(shape, which, array=machine.array):
        return pass_cost(shape, which, array, machine.dataflow).cycles

    cycles = 0
    for step in range(steps):
        plan = schedule(step)
        for op in ops:
            cycles += cost(op.shape, Pass.FORWARD)
            if plan.phase is not Phase.GP:
                cycles += sum(cost(op.shape, which) for which in op.passes[1:])
            if design is Design.BASELINE or not op.covered:
                continue
            small, last = machine.predictor.layers(op)
            weights = small.weight_words + last.weight_words
            cycles += cost(small, Pass.FORWARD) + cost(last, Pass.FORWARD)
            cycles += math.ceil(weights / machine.dram_words_per_cycle) if design is Design.LOW else 0
            if plan.phase is not Phase.GP:
                cycles += cost(small, Pass.WEIGHT_GRAD) + cost(last, Pass.WEIGHT_GRAD) + cost(last, Pass.INPUT_GRAD)
                cycles += math.ceil(6 * weights / machine.dram_words_per_cycle) if design is Design.LOW else 0
    return cycles


@pytest.mark.parametrize("dataflow", ["ws", "is"])
@pytest.mark.parametrize("model", ["vgg13", "mobilenet_v2"])
def test_designs_of_real_networks_step_by_step(model, dataflow):
    ops, machine = network(model, "cifar10", 16), Machine(dataflow=dataflow, predictor=PredictorShape(3, 2))
    schedule = ladder(steps_per_epoch=3, warmup_epochs=1, rung_epochs=1)
    runs = simulate(ops, schedule, 20, machine)
    for design in (Design.LOW, Design.EFFICIENT):
        assert runs[design].cycles == by_hand(ops, schedule, 20, design, machine)
        assert runs[design].count == 20
    plain = always_backprop()
    assert runs[Design.BASELINE].cycles == by_hand(ops, plain, 20, Design.BASELINE, machine)


@st.composite
def networks(draw):
    ops = []
    for place in range(draw(st.integers(1, 5))):
        groups = draw(st.sampled_from([1, 1, 2]))
        shape = LayerShape(
            groups * draw(st.integers(1, 40)),
            groups * draw(st.integers(1, 40)),
            (draw(st.integers(1, 9)), draw(st.integers(1, 9))),
            (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
            groups=groups,
            batch=draw(st.integers(1, 20)),
        )
        passes = tuple(Pass) if place else (Pass.FORWARD, Pass.WEIGHT_GRAD)
        ops.append(LayerOp(f"l{place}", "convolution", shape, passes, draw(st.booleans()), draw(st.booleans()), 7))
    return ops


machines = st.builds(
    Machine,
    array=st.builds(Array, st.integers(1, 20), st.integers(1, 20), buffer_words=st.integers(5000, 10**6)),
    dataflow=st.sampled_from(DATAFLOWS),
    predictor=st.builds(PredictorShape, st.integers(1, 5), st.integers(1, 3)),
    second_array=st.builds(Array, st.integers(1, 20), st.integers(1, 20), buffer_words=st.just(100_000)),
    dram_words_per_cycle=st.integers(1, 64),
    stalls=st.booleans(),
    policy=st.sampled_from(["once", "separate", "momentum", "kept"]),
    vector_lanes=st.sampled_from([None, 1, 8]),
)


@given(networks(), machines, st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_more_hardware_is_never_slower(ops, machine, k, m):
    runs = simulate(ops, fixed(k, m), k + m, machine)
    assert runs[Design.MAX].cycles <= runs[Design.EFFICIENT].cycles <= runs[Design.LOW].cycles
    assert runs[Design.MAX].dram_words == runs[Design.EFFICIENT].dram_words <= runs[Design.LOW].dram_words


@given(networks(), machines)
@settings(max_examples=40, deadline=None)
def test_without_gp_batches_adagp_is_the_baseline_and_the_predictor(ops, machine):
    runs = simulate(ops, fixed(0, 1), 3, machine)
    layers = network_costs(ops, machine)
    predictor = sum(
        layer.predictor.predict_cycles + layer.predictor.learn_cycles
        for layer, op in zip(layers, ops, strict=True)
        if op.covered
    )
    assert runs[Design.EFFICIENT].cycles == runs[Design.BASELINE].cycles + 3 * predictor
    (batch,) = runs[Design.LOW].batches
    assert runs[Design.LOW].cycles == runs[Design.EFFICIENT].cycles + 3 * sum(step.load_cycles for step in batch.steps)


@given(networks(), machines, st.integers(1, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_larger_buffer_never_means_more_traffic_or_cycles_under_systolic_dataflows(ops, machine, more):
    machine = dataclasses.replace(machine, dataflow="ws")
    larger = dataclasses.replace(machine.array, buffer_words=machine.array.buffer_words + more)
    small = simulate(ops, fixed(1, 1), 2, machine)
    large = simulate(ops, fixed(1, 1), 2, dataclasses.replace(machine, array=larger))
    for design in Design:
        assert large[design].dram_words <= small[design].dram_words
        assert large[design].cycles <= small[design].cycles


def test_without_a_predictor_nobody_predicts_or_learns():
    ops = network("vgg13", "cifar10", 8)
    runs = simulate(ops, ladder(5, 0, 1, source="skip"), 20)
    assert runs[Design.EFFICIENT].cycles == runs[Design.LOW].cycles == runs[Design.MAX].cycles
    forward = sum(pass_cost(op.shape, Pass.FORWARD, Array(), "ws").cycles for op in ops)
    gp = next(batch for batch in runs[Design.EFFICIENT].batches if batch.phase is Phase.GP)
    assert gp.cycles == forward
    plain = simulate(ops, always_backprop(), 20)
    assert len({run.cycles for run in plain.values()}) == 1


def test_layers_may_have_other_sources_than_their_neighbours():
    ops = network("vgg13", "cifar10", 8)
    names = [op.name for op in ops]
    asked = batch_tasks(ops, approximation("1", names, "zero")(0), learning=False)
    assert [not task.weight_grad for task in asked] == [place % 4 == 1 for place in range(len(ops))]
    assert all(task.input_grad == (place > 0) and task.update for place, task in enumerate(asked))
    prefix = Plan(Phase.BP, "backprop", dict.fromkeys(names[:4], "predicted"))
    asked = batch_tasks(ops, prefix, learning=True)
    assert asked[0] == asked[3] == ArrayTask(update=True, predict=True)
    assert asked[4] == ArrayTask(weight_grad=True, update=True, predict=True, learn=True)
    assert asked[5].input_grad


def test_the_error_reaches_what_stands_before_the_first_layer():
    ops = network("transformer", "multi30k", 4)
    asked = batch_tasks(ops, BACKPROP, learning=False)
    for op, task in zip(ops, asked, strict=True):
        assert (task.input_grad, task.weight_grad) == (Pass.INPUT_GRAD in op.passes, Pass.WEIGHT_GRAD in op.passes)
    idle = batch_tasks(ops, GP, learning=True)
    assert not any(task.input_grad or task.weight_grad or task.learn for task in idle)
    assert sum(task.predict for task in idle) == sum(op.covered for op in ops)


def test_stalls_and_vector_unit_only_add():
    ops = network("mobilenet_v2", "cifar10", 16)
    schedule = paper_schedule(30)
    plain = simulate(ops, *schedule)
    for more in (Machine(stalls=True, dram_words_per_cycle=1), Machine(vector_lanes=16)):
        slower = simulate(ops, *schedule, more)
        for design in Design:
            assert slower[design].cycles > plain[design].cycles
            assert slower[design].dram_words == plain[design].dram_words
    (op,) = [dataclasses.replace(square("a", 8), vector_words=100)]
    steps = batch_steps(
        Design.BASELINE,
        network_costs([op], Machine(vector_lanes=16)),
        batch_tasks([op], BACKPROP, False),
        Machine(vector_lanes=16),
    )
    bare = pass_cost(op.shape, Pass.FORWARD, Array(), "ws").cycles
    assert [step.cycles for step in steps] == [bare + 7, 2 * bare + 7 + 4]


def test_layer_cycles_add_up_to_the_run():
    runs = simulate(network("vgg13", "cifar10", 32), *paper_schedule(90))
    for run in runs.values():
        assert sum(sum(run.layer_cycles(phase).values()) for phase in Phase) == run.cycles


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Machine(dataflow="xs"), "dataflow='xs'.*ws, os, is, rs"),
        (lambda: Machine(policy="twice"), "policy='twice'.*once, separate"),
        (lambda: Machine(dram_words_per_cycle=0), "dram_words_per_cycle=0"),
        (lambda: Machine(vector_lanes=0), "vector_lanes=0.*leave it out"),
        (lambda: PredictorShape(grid=0), "predictor grid=0"),
        (lambda: paper_schedule(0), "epochs=0"),
        (
            lambda: simulate([square("a")], from_function(lambda step: Plan(Phase.BP, "topk")), 1),
            "source topk.*backprop, predicted, skip, zero",
        ),
        (
            lambda: simulate([square("a", 500)], fixed(1, 1), 2, Machine(Array(buffer_words=4), "rs")),
            "layer a: buffer_words=4",
        ),
    ],
)
def test_bad_input_is_refused_by_name_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()
