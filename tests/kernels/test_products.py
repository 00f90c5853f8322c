"""Matrix products by oneDNN against torch's own."""

import pytest
import torch

from adagp.kernels import products
from adagp.kernels.products import add_product, product

SIZES = ((3, 5, 7), (64, 2048, 1100), (512, 1031, 700))
"""The first is small, the others are for oneDNN."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("left_is_turned", [False, True])
@pytest.mark.parametrize("right_is_turned", [False, True])
def test_products_are_those_of_torch(size: tuple[int, int, int], left_is_turned: bool, right_is_turned: bool) -> None:
    rows, inner, columns = size
    left = torch.randn(inner, rows).t() if left_is_turned else torch.randn(rows, inner)
    right = torch.randn(columns, inner).t() if right_is_turned else torch.randn(inner, columns)
    expected = left.double() @ right.double()
    total = torch.ones(rows, columns)
    add_product(total, left, right)
    for found in (product(left, right), total - 1):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)


def test_onednn_takes_large_products_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(products, "_by_onednn", lambda left, right: taken.append(left.shape) or left @ right)
    monkeypatch.setattr(products, "_has_onednn", lambda: True)
    large = torch.randn(512, 1024), torch.randn(1024, 256)
    product(*large)
    product(*(one[:200] for one in large[:1]), large[1])
    product(*(one.double() for one in large))
    assert taken == [(512, 1024)]


def test_without_onednn_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_has_onednn", lambda: False)
    left, right = torch.randn(512, 1024), torch.randn(1024, 256)
    assert torch.equal(product(left, right), left @ right)
