"""Operations of smaller samples against the oracle: the same network built for the smaller size, and traced."""

import functools

import pytest
import torch
from torch import nn

from adagp import models, schedules
from adagp.accelerator import CNNS, COST_TABLES, DATA_SHAPES, Design, Machine, network, simulate, trace
from adagp.accelerator.resizing import resize
from adagp.accelerator.workload import LayerOp

CIFAR = ["resnet20", "resnet50", "vgg13", "mobilenet_v2", "densenet121"]
IMAGENET = ["resnet50", "vgg13", "mobilenet_v2", "densenet121"]
REST = [model for model in CNNS if model not in (*IMAGENET, "inception_v3")]


@functools.cache
def built_smaller(model: str, data: str, scale: float, batch: int) -> list[LayerOp]:
    shape = DATA_SHAPES[data]
    (full,) = models.example_inputs(model, shape.form, batch=1, **shape.sizes)
    side = round(full.shape[-1] * scale)
    with torch.device("meta"):
        return trace(models.build(model, shape.form, **shape.sizes), torch.empty(batch, 3, side, side))


@pytest.mark.parametrize(
    ("model", "data", "scale"),
    [
        *((model, "cifar10", scale) for model in CIFAR for scale in (0.5, 0.75)),
        *((model, "imagenet", 0.5) for model in IMAGENET),
        ("vgg13", "cifar10", 0.625),
        *(pytest.param(model, "imagenet", scale, marks=pytest.mark.slow) for model in REST for scale in (0.5, 0.9)),
    ],
)
def test_resized_operations_are_those_of_a_smaller_trace(model: str, data: str, scale: float) -> None:
    smaller = resize(network(model, data, 4), scale)
    traced = built_smaller(model, data, scale, 4)
    assert [(op.name, op.kind, op.shape) for op in smaller] == [(op.name, op.kind, op.shape) for op in traced]


@pytest.mark.parametrize("dataflow", ["ws", "os", "is", "rs"])
@pytest.mark.parametrize(("model", "data"), [("resnet20", "cifar10"), ("densenet121", "imagenet")])
def test_a_coarse_batch_costs_what_the_network_built_at_half_size_costs(model: str, data: str, dataflow: str) -> None:
    machine = Machine(dataflow=dataflow)
    coarse = simulate(network(model, data, 4), schedules.fixed(1, 0, source="coarse"), 1, machine)
    by_hand = simulate(built_smaller(model, data, 0.5, 4), schedules.always_backprop(), 1, machine)
    for design in (Design.LOW, Design.EFFICIENT, Design.MAX):  # no predictor works in a coarse batch
        assert coarse[design].cycles == by_hand.baseline.cycles == by_hand[design].cycles
        for table in COST_TABLES.values():
            assert coarse[design].energy(table) == by_hand.baseline.energy(table) > 0


def test_sizes_of_a_module_that_pools_in_every_way() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 5, stride=2, padding=1),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.AvgPool2d(3, 2, padding=1, ceil_mode=True),
        nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1, output_padding=1),
        nn.MaxPool2d((3, 3), padding=1),
        nn.Conv2d(4, 4, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 10),
    )
    full = trace(model, torch.empty(2, 3, 97, 130))
    assert [op.pooling for op in full] == [(2, 0), (2, 2), (3, 2), (), ()]
    for scale in (0.4, 0.5, 0.61, 0.75, 0.9):
        traced = trace(model, torch.empty(2, 3, round(97 * scale), round(130 * scale)))
        assert [op.shape for op in resize(full, scale)] == [op.shape for op in traced]


def test_full_size_is_the_network_itself() -> None:
    ops = network("resnet20", "cifar10", 8)
    assert resize(ops, 1) == ops


def test_attention_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"scale=0.5: .* multiplies activations, and coarse batches are modelled for"):
        resize(network("transformer", "multi30k", 4), 0.5)


def test_a_network_that_needs_its_full_size_is_refused_by_the_layer() -> None:
    with pytest.raises(ValueError, match=r"scale=0.5: leaves 1x1 positions for layer AuxLogits.conv1.* kernel of 5x5"):
        resize(network("inception_v3", "imagenet", 4), 0.5)
    with pytest.raises(ValueError, match="AuxLogits"), torch.device("meta"):
        built_smaller("inception_v3", "imagenet", 0.5, 4)
