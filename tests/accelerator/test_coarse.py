"""Coarse batches on the array: the operations of smaller samples, and what a training of them takes."""

import pytest
import torch

from adagp import models, schedules
from adagp.accelerator import Design, simulate
from adagp.accelerator.networks import network
from adagp.accelerator.tracing import trace
from adagp.accelerator.workload import resize
from adagp.schedules import Phase


@pytest.mark.parametrize("scale", [0.5, 0.75])
@pytest.mark.parametrize("name", ["resnet20", "resnet50", "vgg13", "mobilenet_v2", "densenet121"])
def test_resized_operations_are_those_of_a_smaller_trace(name: str, scale: float) -> None:
    smaller = resize(network(name, "cifar10", 4), scale)
    side = round(32 * scale)
    with torch.device("meta"):
        traced = trace(models.build(name), torch.empty(4, 3, side, side))
    assert [(op.name, op.kind, op.shape) for op in smaller] == [(op.name, op.kind, op.shape) for op in traced]


def test_full_size_is_the_network_itself() -> None:
    ops = network("resnet20", "cifar10", 8)
    assert resize(ops, 1) == ops


def test_attention_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"scale=0.5: .* multiplies activations, and coarse batches are modelled for"):
        resize(network("transformer", "multi30k", 4), 0.5)


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
