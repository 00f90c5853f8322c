"""Approximation schedules: against their definition written out, and the counts the paper gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adagp import Phase, models, schedules


def grid(schedule: schedules.Schedule, layers: list[str], batches: int) -> list[str]:
    """A row of letters per layer: `.` for backprop, else the first letter of the source."""
    plans = [schedule(step) for step in range(batches)]
    return ["".join(plan.source(layer)[0] for plan in plans).replace("b", ".") for layer in layers]


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 12), st.integers(1, 5), st.integers(0, 50))
def test_exactly_the_layers_and_batches_asked_for(
    count: int, every_layer: int, first_layer: int, every_batch: int, step: int
) -> None:
    layers = [f"l{number}" for number in range(1, count + 1)]
    options = {"every_layer": every_layer, "first_layer": first_layer, "every_batch": every_batch}
    if first_layer > count:
        with pytest.raises(ValueError, match=rf"first_layer: is {first_layer}.*from 1 to {count}"):
            schedules.approximate(layers, "zero", **options)
        return
    plan = schedules.approximate(layers, "zero", **options)(step)
    assert plan.phase is Phase.BP
    for number, layer in enumerate(layers, start=1):
        chosen = number >= first_layer and (number - first_layer) % every_layer == 0
        approximated = chosen and (step + 1) % every_batch == 0
        assert plan.source(layer) == ("zero" if approximated else "backprop")
    assert plan.source("another") == "backprop"
    assert plan.source_of_uncovered("norm") == "backprop"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("1", ["....", "zzzz", "....", "....", "....", "zzzz"]),
        ("2", ["....", ".z.z", "....", ".z.z", "....", ".z.z"]),
        ("3", ["...z", "...z", "...z", "...z", "...z", "...z"]),
        ("second-layer", ["....", ".z.z", "....", "....", "....", "...."]),
    ],
)
def test_the_papers_schedules_as_drawn(name: str, wanted: list[str]) -> None:
    layers = list("abcdef")
    schedule = schedules.approximation(name, layers, "zero")
    assert grid(schedule, layers, 4) == wanted
    assert schedule(3) is schedule(7)  # made once, not anew in every step
    assert schedule.sources == {"backprop", "zero"}


def test_schedule_1_approximates_the_papers_five_layers_of_resnet20() -> None:
    convolutions = schedules.layer_names(models.build("resnet20"), include="Conv")
    assert len(convolutions) == 19
    chosen = schedules.approximation("1", convolutions, "topk")(0).overrides
    assert list(chosen) == [convolutions[place] for place in (1, 5, 9, 13, 17)]


@pytest.mark.parametrize("name", ["1", "2", "3"])
def test_a_quarter_of_all_layer_gradients_is_approximated(name: str) -> None:
    layers = [f"l{number}" for number in range(20)]
    text = "".join(grid(schedules.approximation(name, layers, "random"), layers, 8))
    assert text.count("r") == len(text) / 4


def test_layer_names_are_those_of_the_engine() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.Linear(2, 2)), nn.Embedding(2, 2))
    assert schedules.layer_names(model) == ["0", "2.0"]
    assert schedules.layer_names(model, exclude="Conv") == ["2.0"]


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"name='4' is no approximation schedule.*1, 2, 3, second-layer"):
        schedules.approximation("4", ["a", "b"], "zero")
    with pytest.raises(ValueError, match=r"source='none' is unknown.*topk"):
        schedules.approximate(["a"], "none")
    with pytest.raises(ValueError, match=r"layers: there are none.*layer_names"):
        schedules.approximate([], "zero")
    with pytest.raises(ValueError, match="every_layer: must be at least 1"):
        schedules.approximate(["a"], "zero", every_layer=0)
    with pytest.raises(ValueError, match="every_batch: must be at least 1"):
        schedules.approximate(["a"], "zero", every_batch=0)
    with pytest.raises(ValueError, match=r"source: topk needs a backward.*schedules\.approximate"):
        schedules.fixed(1, 1, source="topk")
