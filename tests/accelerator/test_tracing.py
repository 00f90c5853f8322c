import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from adagp import models
from adagp.accelerator import LayerShape, Pass, trace

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Pass


def traced(name, batch=2):
    with torch.device("meta"):
        model, inputs = models.build(name), models.example_inputs(name, batch=batch)
    return model, inputs, trace(model, *inputs)


def macs(ops, *passes):
    return sum(op.shape.gemm(which).macs for op in ops for which in op.passes if which in passes)


def test_small_network_by_hand():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )
    first, depthwise, last = trace(model, torch.zeros(4, 3, 8, 8))
    assert first.shape == LayerShape(3, 8, (8, 8), (3, 3), batch=4)
    assert first.passes == (FORWARD, WEIGHT_GRAD)
    assert (first.name, first.kind, first.covered, first.bias) == ("0", "convolution", True, True)
    assert depthwise.shape == LayerShape(8, 8, (4, 4), (3, 3), (2, 2), 8, 4)
    assert depthwise.passes == (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
    assert (depthwise.shape.weight_words, depthwise.bias) == (72, False)
    assert last.shape == LayerShape(128, 10, batch=4)
    assert (last.name, last.kind) == ("4", "linear")


def test_other_dimensions_and_transposed_convolutions():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 5, stride=2, dilation=2), nn.Unflatten(2, (2, 4)), nn.ConvTranspose2d(4, 6, 2, stride=2)
    )
    flat, transposed = trace(model, torch.zeros(3, 2, 23))
    assert flat.shape == LayerShape(2, 4, (8,), (5,), (2,), batch=3, image=(23,), dilation=(2,))
    assert transposed.shape == LayerShape(4, 6, (4, 8), (2, 2), (2, 2), batch=3, image=(2, 4), transposed=True)
    assert transposed.shape.gemm(FORWARD).macs == 3 * 4 * 8 * 6 * 4 * 4


class Attention(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.query, self.how = nn.Linear(16, 16), how

    def forward(self, x):
        q = self.query(x).unflatten(-1, (4, 4)).transpose(1, 2)  # (batch, heads, words, 4)
        if self.how == "sdpa":
            return nn.functional.scaled_dot_product_attention(q, q, q)
        return (q @ q.transpose(-1, -2)).softmax(-1) @ q


@pytest.mark.parametrize("how", ["sdpa", "matmul"])
def test_attention_is_one_product_per_sample_and_head(how):
    query, scores, mix = trace(Attention(how), torch.zeros(2, 5, 16))
    assert query.shape == LayerShape(16, 16, batch=10)
    assert scores.shape == LayerShape(8 * 4, 8 * 5, groups=8, batch=5)
    assert mix.shape == LayerShape(8 * 5, 8 * 4, groups=8, batch=5)
    for op in (scores, mix):
        assert (op.kind, op.covered, op.passes) == ("matmul", False, (FORWARD, INPUT_GRAD, WEIGHT_GRAD))


def test_projections_of_attention_are_covered_and_its_products_are_not():
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.zeros(2, 5, 16)
    ops = trace(attention, x, x, x)
    assert [op.kind for op in ops] == ["linear"] * 3 + ["matmul"] * 2 + ["linear"]
    assert [op.covered for op in ops] == [op.kind == "linear" for op in ops]
    assert [op.name for op in ops if op.covered] == ["in_proj"] * 3 + ["out_proj"]


def test_borrowed_weights_are_counted_and_not_covered():
    class Borrower(nn.Module):
        def __init__(self):
            super().__init__()
            self.lender = nn.Linear(16, 4)

        def forward(self, x):
            return nn.functional.linear(x, self.lender.weight)

    (op,) = trace(Borrower(), torch.zeros(2, 16))
    assert (op.kind, op.covered) == ("linear", False)


@pytest.mark.parametrize("name", ["vgg13", "resnet20", "mobilenet_v2", "transformer"])
def test_forward_is_what_torch_counts(name):
    model, inputs, ops = traced(name)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    assert 2 * macs(ops, FORWARD) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["vgg13", "transformer"])
def test_backward_of_networks_without_strides_is_what_torch_counts(name):
    model, inputs, ops = traced(name)
    with FlopCounterMode(display=False) as counter:
        model(*inputs).sum().backward()
    assert 2 * macs(ops, *Pass) == counter.get_total_flops()


def test_frozen_layers_need_no_gradients():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    passes = [op.passes for op in trace(model, torch.zeros(2, 4))]
    assert passes == [(FORWARD,), (FORWARD, WEIGHT_GRAD), (FORWARD, INPUT_GRAD)]


def test_tracing_leaves_no_trace():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace(model, torch.zeros(2, 4))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    for name, tensor in model.state_dict().items():
        assert tensor.device.type == "cpu"
        torch.testing.assert_close(tensor, before[name])


class Deciding(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_a_module_that_cannot_be_traced_is_named_with_the_remedy():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Deciding()))
    with pytest.raises(ValueError, match=r"model: cannot be traced: Deciding 1\.0 .*decisions that depend on values"):
        trace(model, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"Linear 0 failed .*check the shapes of the inputs"):
        trace(model, torch.zeros(2, 5))
    assert not model[0]._forward_hooks


class Fused(nn.Module):
    def forward(self, x):
        return torch.ops.aten._scaled_dot_product_efficient_attention(x, x, x, None, False)[0]


def test_a_product_that_is_not_known_is_refused_and_not_left_out():
    with pytest.raises(ValueError, match=r"Fused .*_efficient_attention is a product that tracing does not know"):
        trace(Fused(), torch.zeros(2, 4, 8, 16))
