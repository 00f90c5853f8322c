import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.quality import GradientAlignment, LayerQuality, mean_absolute_percentage_errors, overall_cosine
from tests.nets import alignment


@given(st.integers(0, 10_000))
def test_figures_follow_from_their_definitions(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, t = torch.randn(2, 3, 5, generator=generator).double()
    found = alignment(p, t)
    assert found.cosine == pytest.approx(float(torch.nn.functional.cosine_similarity(p.flatten(), t.flatten(), dim=0)))
    assert found.norm_ratio == pytest.approx(float(p.norm() / t.norm()))
    assert found.mse == pytest.approx(float((p - t).square().mean()))


def test_nothing_predicted_and_nothing_true() -> None:
    zero, one = torch.zeros(4), torch.ones(4)
    assert alignment(zero, one).cosine == 0
    assert alignment(zero, one).mape == 1
    assert alignment(one, zero).cosine == 0
    assert alignment(one, zero).norm_ratio == 0
    assert alignment(one, zero).mape == 0
    assert alignment(one, one).mape == 0


def test_mape_is_equation_1_where_it_is_defined() -> None:
    true = torch.tensor([1.0, -2.0, 4.0, 0.0])
    predicted = torch.tensor([1.5, -1.0, 4.0, 7.0])
    tiny = torch.tensor([1.0, 1e-30, 1.0, 2.0, 1.0])
    found = mean_absolute_percentage_errors([predicted, torch.ones(5)], [true, tiny])
    assert found == pytest.approx([(0.5 + 0.5 + 0) / 3, 0.5 / 4])


def test_overall_cosine_is_that_of_all_layers_as_one_vector() -> None:
    p, t = torch.randn(10), torch.randn(10)
    parts = {"a": alignment(p[:3], t[:3]), "b": alignment(p[3:], t[3:])}
    assert overall_cosine(parts) == pytest.approx(alignment(p, t).cosine)


def test_running_figures_average_evenly_first_and_then_forget() -> None:
    quality = LayerQuality()
    for cosine in [1.0] * 10 + [0.0] * 2:
        quality = quality.after(GradientAlignment(cosine, 1.0, 1.0, 1, 0.0), trust=0.25)
    assert (quality.trust, quality.batches) == (0.25, 12)
    assert quality.cosine == pytest.approx(0.9**2), "the first ten count alike, then each new one a tenth"
