from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp import Phase, schedules
from adagp.accelerator import Design, Machine, backward_cycles, batch_tasks, forward_cycles, network, network_costs
from adagp.accelerator.pipeline import Costs, Pipeline, costs, phases_of, simulate
from adagp.accelerator.pipeline.stages import balanced_cuts, stages
from adagp.accelerator.pipeline.training import training_steps
from adagp.accelerator.resizing import resize
from adagp.schedules import always_backprop

BP, GP, WARMUP = Phase.BP, Phase.GP, Phase.WARMUP


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_no_other_cut_has_a_cheaper_dearest_part(values, parts):
    if len(values) < parts:
        with pytest.raises(ValueError, match=f"devices={parts}: .* only {len(values)} layers"):
            balanced_cuts(values, parts)
        return

    def dearest(cuts):
        return max(sum(values[start:end]) for start, end in pairwise(cuts))

    found = balanced_cuts(values, parts)
    assert (found[0], found[-1], len(found)) == (0, len(values), parts + 1)
    assert list(found) == sorted(set(found))
    inner = combinations(range(1, len(values)), parts - 1)
    assert dearest(found) == min(dearest((0, *cuts, len(values))) for cuts in inner)


def test_stages_hold_all_the_cycles_of_the_network():
    machine = Machine()
    ops = network("vgg13", "cifar10", 8)
    layers = network_costs(ops, machine)
    tasks = batch_tasks(ops, always_backprop()(0), learning=False)
    staged = stages(ops, 4, Design.EFFICIENT, machine)
    forward = [forward_cycles(layer, task, machine) for layer, task in zip(layers, tasks, strict=True)]
    backward = [backward_cycles(layer, task, machine) for layer, task in zip(layers, tasks, strict=True)]
    for stage, (start, end) in enumerate(pairwise(staged.cuts)):
        assert staged.plain.bp_forward[stage] == sum(forward[start:end])
        assert staged.plain.bp_backward[stage] == sum(backward[start:end])
    assert staged.imbalance == pytest.approx(
        max(sum(forward[a:b]) + sum(backward[a:b]) for a, b in pairwise(staged.cuts))
        * 4
        / (sum(forward) + sum(backward))
    )


def test_the_predictor_adds_its_cycles_to_every_stage():
    machine = Machine()
    ops = network("resnet50", "cifar10", 8)
    layers = network_costs(ops, machine)
    staged = stages(ops, 4, Design.EFFICIENT, machine)
    for stage, (start, end) in enumerate(pairwise(staged.cuts)):
        predict = sum(layer.predictor.predict_cycles for layer in layers[start:end])
        learn = sum(layer.predictor.learn_cycles for layer in layers[start:end])
        assert staged.predicting.bp_forward[stage] == staged.plain.bp_forward[stage] + predict
        assert staged.predicting.bp_backward[stage] == staged.plain.bp_backward[stage] + learn
        assert staged.predicting.gp_forward[stage] == staged.plain.bp_forward[stage] + predict
    beside = stages(ops, 4, Design.MAX, machine)
    reloaded = stages(ops, 4, Design.LOW, machine)
    assert beside.cuts == reloaded.cuts == staged.cuts
    for fast, middle, slow in zip(*(one.predicting.bp_backward for one in (beside, staged, reloaded)), strict=True):
        assert fast <= middle < slow


def test_coarse_stages_are_those_of_the_smaller_network_at_the_same_cuts():
    machine = Machine()
    ops = network("densenet121", "imagenet", 4)
    staged = stages(ops, 4, Design.MAX, machine, scale=0.5)
    smaller = resize(ops, 0.5)
    tasks = batch_tasks(smaller, always_backprop()(0), learning=False)
    layers = list(zip(network_costs(smaller, machine), tasks, strict=True))
    for stage, (start, end) in enumerate(pairwise(staged.cuts)):
        assert staged.coarse.bp_forward[stage] == sum(forward_cycles(*each, machine) for each in layers[start:end])
        assert staged.coarse.bp_backward[stage] == sum(backward_cycles(*each, machine) for each in layers[start:end])
    full = stages(ops, 4, Design.MAX, machine)
    assert full.coarse is None
    assert (full.cuts, full.plain, full.predicting) == (staged.cuts, staged.plain, staged.predicting)


def test_a_baseline_has_no_predictor_to_pipeline():
    with pytest.raises(ValueError, match="design=baseline"):
        stages(network("vgg13", "cifar10", 8), 4, Design.BASELINE, Machine())


@st.composite
def trainings(draw):
    scheme = draw(st.sampled_from(["gpipe", "dapple", "chimera"]))
    devices = draw(st.sampled_from([2, 4]) if scheme == "chimera" else st.integers(1, 4))
    price = st.lists(st.integers(1, 9), min_size=devices, max_size=devices).map(tuple)
    phases = draw(st.lists(st.sampled_from([BP, GP, WARMUP]), min_size=1, max_size=7))
    return scheme, devices, draw(st.integers(1, 5)), tuple(phases), Costs(draw(price), draw(price), draw(price))


@given(trainings())
@settings(max_examples=100, deadline=None)
def test_runs_of_batches_that_end_in_bp_add_up_exactly(case):
    scheme, devices, microbatches, phases, price = case
    whole = simulate(Pipeline(scheme, devices, microbatches, phases), price).steps
    assert training_steps(scheme, devices, microbatches, phases, price) == whole


def test_ninety_epochs_of_the_ladder_are_the_papers_arithmetic():
    ladder = phases_of(schedules.ladder(60), range(90 * 60))
    expected = 60 * (10 * 21 + 4 * 37 / 5 + 4 * 33 / 4 + 4 * 29 / 3 + 68 * 25 / 2)
    assert training_steps("gpipe", 4, 4, ladder, costs(4)) == pytest.approx(expected)


def test_messages_that_take_time_do_not_add_up():
    with pytest.raises(ValueError, match=r"communication=1: .* use simulate"):
        training_steps("chimera", 4, 4, [BP], costs(4, communication=1))
