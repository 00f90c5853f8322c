"""The predictor's convolution: torch's own, and autograd through it, say the same."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from adagp.predictors.grid_convolution import GridConvolution, initial_values


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 5), st.integers(1, 6))
def test_a_product_is_the_convolution_and_its_gradient(seed: int, channels: int, grid: int, rows: int) -> None:
    torch.manual_seed(seed)
    ours = GridConvolution(initial_values(channels), grid)
    torchs = nn.Conv2d(1, channels, 3, padding=1)
    vector_to_parameters(ours.values.clone(), torchs.parameters())
    pooled = torch.randn(rows, grid * grid)
    inputs = torch.cat([pooled, torch.ones(rows, 1)], dim=1)
    hidden = torch.relu(torchs(pooled.view(rows, 1, grid, grid))).flatten(1)
    expected = torch.cat([hidden, torch.ones(rows, 1)], dim=1)
    hidden = ours.hidden(inputs)
    assert torch.allclose(hidden, expected, atol=1e-6)
    grad = torch.randn_like(hidden)
    expected.backward(grad)
    true = parameters_to_vector([parameter.grad for parameter in torchs.parameters() if parameter.grad is not None])
    assert torch.allclose(ours.gradient(inputs, hidden, grad), true, atol=1e-4)


def test_it_begins_as_torchs_own() -> None:
    torch.manual_seed(0)
    ours = initial_values(2)
    torch.manual_seed(0)
    assert torch.equal(ours, parameters_to_vector(nn.Conv2d(1, 2, 3).parameters()))


def test_the_matrix_follows_values_that_were_written_to() -> None:
    ours = GridConvolution(initial_values(1), 4)
    inputs = torch.randn(3, 17)
    before = ours.hidden(inputs)
    assert torch.equal(before, ours.hidden(inputs))
    ours.values.add_(1)
    ours.changed()
    assert not torch.equal(before, ours.hidden(inputs))
