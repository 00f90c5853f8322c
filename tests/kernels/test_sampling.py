"""Draws without bias: each row comes as often as its probability says."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagp.kernels.sampling import draw, inclusion_probabilities

scores = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=1, max_size=40).map(torch.tensor)


def reference(values: list[float], count: float) -> list[float]:
    """The largest rows are certain one by one, until no other would be drawn more than once."""
    order = sorted(range(len(values)), key=lambda row: -values[row])
    certain = 0
    while certain < len(values):
        rest = sum(values[row] for row in order[certain:])
        if rest <= 0 or values[order[certain]] * (count - certain) < rest:
            break
        certain += 1
    rest = sum(values[row] for row in order[certain:])
    found = dict.fromkeys(order[:certain], 1.0)
    found |= {row: values[row] * max(count - certain, 0) / rest if rest > 0 else 0.0 for row in order[certain:]}
    return [min(found[row], 1.0) for row in range(len(values))]


@given(scores, st.floats(0.05, 1))
@settings(max_examples=80, deadline=None)
def test_probabilities_follow_the_scores_and_add_up(rows: Tensor, rate: float) -> None:
    count = rate * len(rows)
    found = inclusion_probabilities(rows, count)
    torch.testing.assert_close(
        found, torch.tensor(reference(rows.double().tolist(), count), dtype=torch.float64), rtol=1e-9, atol=1e-9
    )
    assert abs(float(found.sum()) - min(count, int((rows > 0).sum()))) < 1e-6


@given(scores, st.floats(0.05, 1))
@settings(max_examples=30, deadline=None)
def test_over_all_starts_each_row_is_drawn_as_often_as_its_probability_says(rows: Tensor, rate: float) -> None:
    probabilities = inclusion_probabilities(rows, rate * len(rows))
    times = torch.zeros(len(rows), dtype=torch.float64)
    for start in range(100):
        drawn = draw(probabilities, (start + 0.5) / 100)
        assert abs(len(drawn.rows) - float(probabilities.sum())) < 1 + 1e-9
        assert torch.equal(drawn.rows, drawn.rows.unique())  # in order, none twice
        assert torch.equal(drawn.weights, 1 / probabilities[drawn.rows])
        times[drawn.rows] += 1 / 100
    torch.testing.assert_close(times, probabilities, rtol=0, atol=0.011)


def test_a_start_of_zero_is_one_like_any_other() -> None:
    assert draw(torch.full((8,), 0.25, dtype=torch.float64), 0.0).rows.tolist() == [3, 7]
    assert draw(torch.full((8,), 0.25, dtype=torch.float64), 0.3).rows.tolist() == [1, 5]
    assert draw(torch.ones(3, dtype=torch.float64), 0.0).rows.tolist() == [0, 1, 2]


def test_nothing_is_drawn_where_nothing_has_a_score() -> None:
    assert not len(draw(inclusion_probabilities(torch.zeros(5), 2.0), 0.5).rows)
