"""What `sampled_weight_grad` means: an estimate whose mean is the exact gradient, the same by every kernel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d

from adagp.kernels import sampled_compiled, sampled_portable, sampled_weight_grad
from adagp.kernels.geometry import geometry
from adagp.kernels.sampled import sampled_sums
from adagp.kernels.sampling import draw, inclusion_probabilities
from tests.kernels.cases import Case, assert_same, cases, needs_compiler

WAYS = [
    pytest.param(sampled_portable, id="portable"),
    pytest.param(sampled_compiled, id="compiled", marks=needs_compiler),
]


def exact(case: Case) -> Tensor:
    conv = case.conv
    weight = torch.empty(conv.weight_shape, dtype=case.input.dtype)
    return torch.ops.aten.convolution_backward(
        case.grad_output, case.input, weight, None, conv.stride, conv.padding, conv.dilation, False, [0, 0],
        conv.groups, [False, True, False],
    )[1]  # fmt: skip


def patches(case: Case) -> Tensor:
    """The input under every tap of every position: `(samples, positions, taps, channels)`, by convolutions."""
    conv, (samples, channels) = case.conv, case.input.shape[:2]
    taps = torch.eye(conv.taps, dtype=case.input.dtype).view(conv.taps, 1, *conv.weight_shape[2:])
    found = conv2d(
        case.input.reshape(-1, 1, *case.input.shape[2:]), taps, None, conv.stride, conv.padding, conv.dilation
    )
    return found.flatten(2).view(samples, channels, conv.taps, -1).permute(0, 3, 2, 1)


@pytest.mark.parametrize("way", WAYS)
@given(case=cases(), own_means=st.booleans())
@settings(max_examples=40, deadline=None)
def test_scores_are_the_norms_of_what_is_summed(way: object, case: Case, own_means: bool) -> None:
    found = way.score(case.input, case.grad_output, case.conv, own_means)  # type: ignore[attr-defined]
    means = case.input.mean((2, 3)) if own_means else case.input.mean((0, 2, 3))[None]
    left = patches(case) - means[:, None, None]
    expected = left.square().sum((2, 3)).sqrt() * case.grad_output.flatten(2).square().sum(1).sqrt()
    assert_same(found.means, means)
    assert_same(found.totals, case.grad_output.sum((2, 3)))
    root = float(torch.finfo(case.input.dtype).eps) ** 0.5  # what is left of a difference of squares
    torch.testing.assert_close(found.scores, expected.flatten(), rtol=20 * root, atol=50 * root)


@pytest.mark.parametrize("way", WAYS)
@given(case=cases(), rate=st.floats(0.1, 0.9), start=st.floats(0, 0.999))
@settings(max_examples=50, deadline=None)
def test_drawn_rows_are_summed_with_their_weights(way: object, case: Case, rate: float, start: float) -> None:
    conv, out = case.conv, case.grad_output
    positions = out[0, 0].numel()
    drawn = draw(inclusion_probabilities(torch.ones(len(out) * positions), rate * len(out) * positions), start)
    factors = out.new_zeros(len(out) * positions)
    factors[drawn.rows] = drawn.weights.to(out.dtype)
    thinned = out * factors.view(len(out), 1, *out.shape[2:])
    total, totals = way.sum_rows(case.input, out, conv, drawn)  # type: ignore[attr-defined]
    assert_same(total, exact(Case(conv, case.input, thinned, 1)))
    assert_same(totals, thinned.sum((2, 3)))


@given(case=cases(), rate=st.floats(0.15, 1))
@settings(max_examples=12, deadline=None)
def test_over_all_starts_the_mean_is_the_exact_gradient(case: Case, rate: float) -> None:
    """The starts are evenly spaced, so the mean over them is within `1 / starts` of each row's probability."""
    starts = 200
    found = [sampled_sums(case.input, case.grad_output, case.conv, rate, (i + 0.5) / starts) for i in range(starts)]
    mean = torch.stack([sums.weight.double() for sums in found]).mean(0)
    probabilities = max(1.0, 1 / rate)
    inputs = float(patches(case).abs().max() + case.input.mean((2, 3)).abs().max())
    size = inputs * float(case.grad_output.abs().max()) * case.grad_output.numel()
    torch.testing.assert_close(mean, exact(case).double(), rtol=0, atol=size * probabilities * 8 / starts + 1e-4)
    for sums in found[:3]:
        assert_same(sums.bias, case.grad_output.sum((0, 2, 3)))


@pytest.mark.parametrize("shape", [(16, 8, 3, 3), (16, 4, 3, 3), (8, 8, 1, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_mean_of_many_draws_is_the_exact_gradient_within_its_standard_error(
    shape: tuple[int, int, int, int], layout: torch.memory_format
) -> None:
    generator = torch.Generator().manual_seed(0)
    groups, padding = 8 // shape[1], shape[2] // 2
    x = torch.randn(6, 8, 9, 9, generator=generator).relu().to(torch.float64, memory_format=layout)
    grad = torch.randn(6, shape[0], 9, 9, generator=generator).pow(3).to(torch.float64, memory_format=layout)
    true = exact(Case(geometry(shape, 1, padding, 1, groups), x, grad, 1))
    draws = 600
    found = torch.stack(
        [
            sampled_weight_grad(x, grad, shape, padding=padding, groups=groups, rate=0.2, generator=generator)
            for _ in range(draws)
        ]
    )
    z = (found.mean(0) - true) / (found.std(0) / draws**0.5)
    assert 0.2 < float(z.square().mean()) < 3  # entries are not independent of each other
    assert float(z.abs().max()) < 5
    error = (found - true).square().sum((1, 2, 3, 4)).mean() / true.square().sum()
    assert 0.005 < float(error) < 2


@pytest.mark.parametrize("rate", [1, 1.0])
@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_a_rate_of_one_is_the_exact_gradient(rate: float, case: Case) -> None:
    found = sampled_weight_grad(
        case.input, case.grad_output, case.conv.weight_shape, stride=case.conv.stride, padding=case.conv.padding,
        dilation=case.conv.dilation, groups=case.conv.groups, rate=rate,
    )  # fmt: skip
    assert_same(found, exact(case))


def test_means_and_importance_lower_the_error() -> None:
    """Inputs with a mean and a few large gradients: uniform draws of the raw patches are several times worse."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 16, 12, 12, generator=generator, dtype=torch.float64) + 1
    grad = torch.randn(8, 16, 12, 12, generator=generator, dtype=torch.float64)
    grad *= torch.randn(8, 1, 12, 12, generator=generator, dtype=torch.float64).exp()
    conv = geometry((16, 16, 3, 3), 1, 1, 1, 1)
    true = exact(Case(conv, x, grad, 1))

    def error(estimates: list[Tensor]) -> float:
        return float(sum((one - true).square().sum() for one in estimates) / len(estimates) / true.square().sum())

    starts = [float(torch.rand(1, generator=generator)) for _ in range(60)]
    ours = error([sampled_sums(x, grad, conv, 0.25, start).weight for start in starts])
    count = grad[:, 0].numel()
    uniform = []
    for _ in starts:
        rows = torch.randperm(count, generator=generator)[: count // 4].sort().values
        drawn = draw(inclusion_probabilities(torch.ones(count), float(count)), 0.5)
        drawn = type(drawn)(rows, torch.full((len(rows),), 4.0, dtype=torch.float64))
        uniform.append(sampled_portable.sum_rows(x, grad, conv, drawn)[0])
    assert error(uniform) > 4 * ours


def test_what_is_not_finite_stays_so() -> None:
    x, grad = torch.randn(2, 3, 4, 4), torch.randn(2, 5, 4, 4)
    grad[1, 2, 3, 3] = torch.inf
    assert not sampled_weight_grad(x, grad, (5, 3, 3, 3), padding=1).isfinite().all()
    grad[1, 2, 3, 3] = torch.nan
    assert not sampled_weight_grad(x, grad, (5, 3, 3, 3), padding=1).isfinite().all()


def test_no_samples_give_zeros() -> None:
    found = sampled_weight_grad(torch.randn(0, 3, 4, 4), torch.randn(0, 5, 4, 4), (5, 3, 3, 3), padding=1)
    assert found.shape == (5, 3, 3, 3)
    assert not found.any()


def test_a_gradient_of_zeros_gives_zeros() -> None:
    found = sampled_weight_grad(torch.randn(2, 3, 4, 4), torch.zeros(2, 5, 4, 4), (5, 3, 3, 3), padding=1)
    assert not found.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    x, grad = (100 * torch.randn(8, 3, 4, 4)).to(dtype), (100 * torch.randn(8, 5, 4, 4)).to(dtype)
    conv = geometry((5, 3, 3, 3), 1, 1, 1, 1)
    found, expected = (sampled_sums(*both, conv, 0.5, 0.3) for both in ((x, grad), (x.float(), grad.float())))
    assert found.weight.dtype == torch.float32
    assert torch.equal(found.weight, expected.weight)


@pytest.mark.parametrize("rate", [0, -0.5, 1.5, float("nan"), True, "half"])
def test_a_rate_that_is_no_share_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate = .*above 0 and at most 1"):
        sampled_weight_grad(torch.randn(2, 3, 4, 4), torch.randn(2, 5, 4, 4), (5, 3, 1, 1), rate=rate)


@needs_compiler
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_number_of_threads_changes_nothing_and_parts_add_up(layout: torch.memory_format) -> None:
    """More rows than one product takes, so that several parts are summed."""
    torch.manual_seed(0)
    x = torch.randn(12, 8, 24, 24).to(memory_format=layout)
    grad = torch.randn(12, 8, 24, 24).to(memory_format=layout)
    conv = geometry((8, 8, 3, 3), 1, 1, 1, 1)
    drawn = draw(torch.full((12 * 576,), 0.75, dtype=torch.float64), 0.3)
    assert len(drawn.rows) > 2 * sampled_compiled._PART_ROWS
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            scored = sampled_compiled.score(x, grad, conv, True)
            found.append((scored.scores, scored.means, *sampled_compiled.sum_rows(x, grad, conv, drawn)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(found[0][:2], found[1][:2], strict=True))
    assert torch.allclose(found[0][2], found[1][2], atol=1e-4)  # torch's own product may depend on it
    assert torch.allclose(found[0][2], sampled_portable.sum_rows(x, grad, conv, drawn)[0], atol=1e-3)
