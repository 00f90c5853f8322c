import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from adagp import models
from adagp.cost import trace_forward


def test_a_product_knows_its_weight_and_the_modules_around_it():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), nn.Flatten(), nn.Linear(128, 5))
    convolution, linear = trace_forward(model, torch.zeros(2, 3, 4, 4)).products
    assert [call.module for call in convolution.calls] == ["", "0", "0.0"]
    assert (convolution.weight, convolution.trains_bias) == ("0.0.weight", True)
    assert (convolution.input_requires_grad, linear.input_requires_grad) == (False, True)
    assert (linear.kind, linear.macs) == ("linear", 2 * 128 * 5)


def test_every_call_of_a_module_is_its_own_with_its_output():
    shared = nn.Linear(4, 4)
    trace = trace_forward(nn.Sequential(shared, nn.Tanh(), shared), torch.zeros(3, 4))
    first, second = (product.calls[-1] for product in trace.products)
    assert (first.module, second.module) == ("0", "0")
    assert first is not second
    assert first.output.shape == (3, 4)
    assert [call.module for call in trace.calls] == ["", "0", "1", "0"]


def test_the_grad_mode_of_the_caller_applies():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        trace = trace_forward(model, torch.zeros(2, 4))
    assert not any(product.input_requires_grad for product in trace.products)


@pytest.mark.parametrize("name", ["resnet20", "mobilenet_v2", "transformer"])
def test_multiply_adds_are_what_torch_counts(name):
    with torch.device("meta"):
        model, inputs = models.build(name), models.example_inputs(name)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    assert 2 * sum(product.macs for product in trace_forward(model, *inputs).products) == counter.get_total_flops()


def test_transposed_and_grouped_convolutions_by_hand():
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False))
    (product,) = trace_forward(model, torch.zeros(2, 4, 5, 5)).products
    assert product.macs == 2 * 5 * 5 * 4 * 3 * 9
