"""The predictor's convolution: torch's own, and autograd through it, say the same."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adagp.predictors.grid_convolution import GridConvolution


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 5), st.integers(1, 6))
def test_a_product_is_the_convolution_and_its_gradient(seed: int, channels: int, grid: int, rows: int) -> None:
    torch.manual_seed(seed)
    ours = GridConvolution(channels, grid)
    torchs = nn.Conv2d(1, channels, 3, padding=1)
    torchs.load_state_dict(ours.state_dict())
    pooled = torch.randn(rows, grid * grid)
    hidden = torch.relu(torchs(pooled.view(rows, 1, grid, grid))).flatten(1)
    expected = torch.cat([hidden, torch.ones(rows, 1)], dim=1)
    hidden = ours.hidden(pooled)
    assert torch.allclose(hidden, expected, atol=1e-6)
    assert not hidden.requires_grad
    grad = torch.randn_like(hidden)
    expected.backward(grad)
    ours.learn(pooled, hidden, grad)
    for parameter, true in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert parameter.grad is not None
        assert true.grad is not None
        assert torch.allclose(parameter.grad, true.grad, atol=1e-4)
        assert parameter.grad.stride() == parameter.stride()


def test_the_matrix_follows_weights_that_a_fused_optimizer_wrote() -> None:
    ours = GridConvolution(1, 4)
    pooled = torch.randn(3, 16)
    before = ours.hidden(pooled)
    assert torch.equal(before, ours.hidden(pooled))
    for parameter in ours.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(ours.parameters(), lr=0.5, fused=True).step()
    ours.changed()
    assert not torch.equal(before, ours.hidden(pooled))
