"""Rows drawn in the forward: the mean over all draws is the exact gradient."""

import pytest
import torch

from adagp.kernels.kept import keep_rows, weight_grad_of_kept


@pytest.mark.parametrize("shape", [(6, 20, 5), (40, 5), (3, 4, 4, 5), (1, 1, 5)])
@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_over_all_starts_the_mean_is_the_exact_gradient(shape: tuple[int, ...], rate: float) -> None:
    torch.manual_seed(0)
    x, grad = torch.randn(shape, dtype=torch.float64) + 1, torch.randn(*shape[:-1], 3, dtype=torch.float64)
    exact = grad.flatten(0, -2).t() @ x.flatten(0, -2)
    starts, total = 400, torch.zeros_like(exact)
    for start in range(starts):
        kept = keep_rows(x, rate, (start + 0.5) / starts)
        count = x[..., 0].numel()
        assert len(kept.rows) == (max(1, round(rate * count)) if count > 1 else 0)  # one row is its own mean
        weight, bias = weight_grad_of_kept(kept, grad)
        torch.testing.assert_close(bias, grad.flatten(0, -2).sum(0))
        total += weight / starts
    torch.testing.assert_close(total, exact, rtol=0, atol=0.02 * float(exact.abs().max()))


def test_only_the_drawn_rows_and_the_means_are_kept() -> None:
    x = torch.randn(8, 64, 16)
    kept = keep_rows(x, 0.25, 0.5)
    assert kept.rows.shape == (128, 16)
    assert torch.equal(kept.rows, x.flatten(0, 1)[kept.places])
    assert kept.means.shape == (8, 16)
    assert keep_rows(x.flatten(0, 1), 0.25, 0.5).means.shape == (1, 16)  # one position each: one mean for all


def test_rows_keep_their_type_and_sums_are_float32() -> None:
    x, grad = torch.randn(4, 32, 8).bfloat16(), torch.randn(4, 32, 6).bfloat16()
    kept = keep_rows(x, 0.5, 0.5)
    assert kept.rows.dtype == torch.bfloat16
    assert weight_grad_of_kept(kept, grad)[0].dtype == torch.float32
