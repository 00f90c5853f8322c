"""What `topk_weight_grad` means, whichever kernel serves it."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp.kernels import choose_topk, topk_backends, topk_reference, topk_weight_grad
from tests.kernels.cases import Case, assert_same, by_hand, cases


def exact(case: Case) -> Tensor:
    conv = case.conv
    weight = torch.empty(conv.weight_shape, dtype=case.input.dtype)
    return torch.ops.aten.convolution_backward(
        case.grad_output, case.input, weight, None, conv.stride, conv.padding, conv.dilation, False, [0, 0],
        conv.groups, [False, True, False],
    )[1]  # fmt: skip


@given(cases())
@settings(max_examples=150, deadline=None)
def test_the_reference_is_algorithm_1(case: Case) -> None:
    assert_same(topk_reference.weight_grad(case.input, case.grad_output, case.conv, case.k), by_hand(case))


@given(cases())
@settings(max_examples=100, deadline=None)
def test_one_entry_per_channel_is_algorithm_1(case: Case) -> None:
    one = Case(case.conv, case.input, case.grad_output, 1)
    assert_same(topk_weight_grad(one.input, one.grad_output, **one.arguments), by_hand(one))  # type: ignore[arg-type]


@given(cases(), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_every_position_is_the_exact_gradient(case: Case, more: int) -> None:
    k = case.grad_output[0, 0].numel() + more
    arguments: Any = case.arguments | {"k": k}
    assert_same(topk_weight_grad(case.input, case.grad_output, **arguments), exact(case))


@given(cases())
@settings(max_examples=100, deadline=None)
def test_kept_entries_add_up_to_the_channels_sum(case: Case) -> None:
    sparse = topk_reference.sparsify(case.grad_output, case.k)
    assert_same(sparse.sum((2, 3)), case.grad_output.sum((2, 3)))
    assert int((sparse != 0).sum((2, 3)).max()) <= case.k


def test_entries_that_cancel_share_what_is_missing() -> None:
    channel = torch.tensor([5.0, -5.0, 2.0, 1.0]).view(1, 1, 2, 2)
    assert topk_reference.sparsify(channel, 2).flatten().tolist() == [6.5, -3.5, 0.0, 0.0]


def test_the_limit_of_cancelling_is_a_tenth_of_the_magnitude() -> None:
    at, over = torch.tensor([[5.5, -4.5, 0.5, 0.0]]), torch.tensor([[5.5, -4.0, 0.5, 0.0]])
    assert topk_reference.sparsify(at.view(1, 1, 2, 2), 2).flatten().tolist() == [5.75, -4.25, 0.0, 0.0]
    torch.testing.assert_close(topk_reference.sparsify(over.view(1, 1, 2, 2), 2).flatten()[:2], over[0, :2] * 2 / 1.5)


def test_the_first_of_equals_is_kept() -> None:
    channel = torch.tensor([1.0, -3.0, 3.0, 3.0]).view(1, 1, 2, 2)
    assert topk_reference.sparsify(channel, 1).flatten().tolist() == [0.0, 4.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 3, 16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, k: int) -> None:
    x, grad = torch.randn(8, 3, 4, 4).to(dtype), torch.randn(8, 5, 4, 4).to(dtype)
    result = topk_weight_grad(x, grad, (5, 3, 3, 3), padding=1, k=k)
    assert result.dtype == torch.float32
    assert_same(result, topk_weight_grad(x.float(), grad.float(), (5, 3, 3, 3), padding=1, k=k))


def test_a_linear_is_a_convolution_over_its_positions() -> None:
    x, grad = torch.randn(4, 7, 6), torch.randn(4, 7, 5)  # (samples, positions, features)
    view_x, view_grad = (tensor.transpose(1, 2).unsqueeze(3) for tensor in (x, grad))
    every = topk_weight_grad(view_x, view_grad, (5, 6, 1, 1), k=7)
    torch.testing.assert_close(every[:, :, 0, 0], torch.einsum("npo,npi->oi", grad, x))
    best = grad.abs().argmax(1)  # (samples, out)
    rows = torch.stack([x[n, best[n]] for n in range(4)])
    one = topk_weight_grad(view_x, view_grad, (5, 6, 1, 1))
    torch.testing.assert_close(one[:, :, 0, 0], torch.einsum("no,noi->oi", grad.sum(1), rows))


def test_no_samples_give_zeros() -> None:
    assert torch.equal(topk_weight_grad(torch.ones(0, 2, 4, 4), torch.ones(0, 3, 4, 4), (3, 2, 1, 1)),
                       torch.zeros(3, 2, 1, 1))  # fmt: skip


def test_it_is_the_gradient_a_layer_would_get() -> None:
    layer = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2)
    x = torch.randn(3, 4, 9, 7)
    output = layer(x)
    grad = torch.randn_like(output)
    output.backward(grad)
    assert layer.weight.grad is not None
    result = topk_weight_grad(x, grad, layer.weight.shape, stride=(2, 1), padding=(1, 0), groups=2, k=10**6)
    assert_same(result, layer.weight.grad)
    assert not topk_weight_grad(x.requires_grad_(), grad, layer.weight.shape, stride=(2, 1), padding=(1, 0), groups=2
                                ).requires_grad  # fmt: skip


def test_a_gradient_that_is_not_finite_stays_visible() -> None:
    x, grad = torch.ones(2, 2, 4, 4), torch.ones(2, 2, 4, 4)
    grad[1, 1, 2, 2] = torch.nan
    for k in (1, 3, 16):
        result = topk_weight_grad(x, grad, (2, 2, 1, 1), k=k)
        assert result[1].isnan().all()
        assert result[0].isfinite().all()


def test_the_choice_names_a_kernel_that_can_be_used() -> None:
    grad = torch.randn(2, 4, 8, 8)
    assert topk_backends()[choose_topk(grad)] == ""
    assert choose_topk(grad, k=64) == "reference"


X, GRAD, SHAPE = torch.randn(2, 4, 8, 8), torch.randn(2, 6, 8, 8), (6, 4, 3, 3)


@pytest.mark.parametrize(
    ("message", "x", "grad", "options"),
    [
        ("padding is 'same'", X, GRAD, {"padding": "same"}),
        ("padding is -1", X, GRAD, {"padding": -1}),
        ("stride is 0", X, GRAD, {"stride": 0}),
        (r"dilation is \(1, 2, 3\)", X, GRAD, {"dilation": (1, 2, 3)}),
        ("groups is 4", X, GRAD, {"groups": 4}),
        ("input has 4 channels", X, GRAD, {"groups": 2}),
        ("grad_output has shape .* give an output of .2, 6, 6, 6.", X, GRAD, {}),
        ("grad_output has shape", X, GRAD[:1], {"padding": 1}),
        ("grad_output is torch.float64", X, GRAD.double(), {"padding": 1}),
        ("input is torch.int64", X.long(), GRAD.long(), {"padding": 1}),
        ("input has shape", X[0], GRAD, {"padding": 1}),
        ("smaller than the kernel", X[:, :, :2], GRAD, {}),
        ("k is 0", X, GRAD, {"padding": 1, "k": 0}),
        ("weight_shape is", X, GRAD, {"weight_shape": (6, 4)}),
        ("grad_output is on meta", X, GRAD.to("meta"), {"padding": 1}),
    ],
)
def test_what_cannot_be_is_refused_by_name(message: str, x: Tensor, grad: Tensor, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        topk_weight_grad(x, grad, **({"weight_shape": SHAPE} | options))
