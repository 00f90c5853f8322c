"""Coarse batches on the array: the operations of smaller samples, and what a training of them takes."""

import pytest

from adagp import schedules
from adagp.accelerator import COST_TABLES, METHODS, Design, Machine, Setting, batch_kinds, method_schedule, simulate
from adagp.accelerator.networks import network
from adagp.accelerator.resizing import resize
from adagp.schedules import Phase, Plan


@pytest.mark.parametrize("design", list(Design))
def test_a_coarse_batch_takes_about_a_quarter_of_the_cycles(design: Design) -> None:
    ops = network("resnet20", "cifar10", 128)
    found = simulate(ops, schedules.fixed(1, 1, source="coarse"), 2)[design]
    if design is Design.BASELINE:
        assert [batch.scale for batch in found.batches] == [1.0]
        return
    coarse, full = found.batches
    assert (coarse.scale, full.scale) == (0.5, 1.0)
    assert coarse.phase is full.phase is Phase.BP
    assert 0.24 < coarse.cycles / full.cycles < 0.32
    assert coarse.dram_words < 0.4 * full.dram_words


def test_the_cycles_of_a_coarse_batch_are_those_of_the_smaller_network() -> None:
    ops = network("vgg13", "cifar10", 16)
    plan = schedules.fixed(1, 0, source="coarse")
    coarse = simulate(ops, plan, 1)[Design.EFFICIENT]
    smaller = simulate(resize(ops, 0.5), schedules.always_backprop(), 1)[Design.BASELINE]
    assert coarse.cycles == smaller.cycles
    assert coarse.dram_words == smaller.dram_words


def test_progressive_training_is_counted_level_by_level() -> None:
    ops = network("resnet20", "cifar10", 128)
    found = simulate(ops, schedules.progressive(100, ((0.5, 0.6), (1.0, 0.4))), 100)
    assert [(batch.scale, batch.count) for batch in found[Design.EFFICIENT].batches] == [(0.5, 60), (1.0, 40)]
    assert 1.6 < found.speed_up(Design.EFFICIENT) < 1 / 0.55


@pytest.mark.parametrize("dataflow", ["ws", "rs"])
def test_batches_side_by_side_are_those_of_trainings(dataflow: str) -> None:
    ops, machine = network("vgg13", "cifar10", 16), Machine(dataflow=dataflow)
    kinds = batch_kinds(ops, machine, 0.75)
    predicting = simulate(ops, schedules.fixed(1, 1), 2, machine)
    coarse = simulate(ops, schedules.fixed(1, 0, source="coarse", scale=0.75), 1, machine)
    assert [batch.label for batch in kinds[Design.BASELINE]] == ["BP", "BP@0.75"]
    for design, batches in kinds.items():
        known = {batch.label: batch for batch in batches}
        run = predicting[design]
        for batch in run.batches:
            alike = known[batch.phase.value]
            assert (alike.cycles, alike.dram_words) == (batch.cycles, batch.dram_words)
        table = COST_TABLES["ddr3"]
        small = known["BP@0.75"]
        assert small.cycles == coarse[Design.MAX].cycles  # on every design, the baseline included
        assert small.energy(table) == coarse[Design.MAX].energy(table)
    assert [batch.label for batch in batch_kinds(ops, machine)[Design.MAX]] == ["BP", "GP"]


def test_methods_are_the_schedules_of_training() -> None:
    assert method_schedule("adagp", 3) == (schedules.ladder(60), 180)
    assert method_schedule("coarse", 3, scale=0.25) == (schedules.ladder(60, source="coarse", scale=0.25), 180)
    levels = ((0.25, 0.5), (1.0, 0.5))
    assert method_schedule("progressive", 3, levels=levels) == (schedules.progressive(180, levels), 180)
    assert list(METHODS) == ["adagp", "coarse", "progressive"]
    with pytest.raises(ValueError, match=r"method='magic': is unknown; choose one of adagp, coarse, progressive"):
        method_schedule("magic", 3)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_setting_simulates_its_method(method: str) -> None:
    setting = Setting(8, 30, method=method, scale=0.75, levels=((0.25, 0.5), (1.0, 0.5)))
    found = setting.simulate(lambda batch: network("resnet20", "cifar10", batch))
    schedule, steps = setting.schedule()
    expected = simulate(network("resnet20", "cifar10", 8), schedule, steps)
    assert {design: run.cycles for design, run in found.items()} == {
        design: run.cycles for design, run in expected.items()
    }
    scales = {"adagp": {1.0}, "coarse": {0.75, 1.0}, "progressive": {0.25, 1.0}}[method]
    assert {batch.scale for batch in found[Design.MAX].batches} == scales


def test_the_predictor_rests_in_a_coarse_batch_of_a_predicting_schedule() -> None:
    ops = network("resnet20", "cifar10", 8)
    plans = [schedules.fixed(1, 1)(0), schedules.fixed(1, 1)(1), Plan(Phase.BP, "backprop", scale=0.5)]
    mixed = simulate(ops, schedules.Repeating(plans), 3)[Design.EFFICIENT]
    coarse = next(batch for batch in mixed.batches if batch.scale == 0.5)
    assert not any(step.predictor_cycles for step in coarse.steps)
