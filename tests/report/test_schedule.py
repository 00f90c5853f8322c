"""Grids of schedules: complete, told apart without colour, the same file for the same schedule."""

import pytest

from adagp import schedules
from adagp.report import grid_picture, schedule_grid, schedule_table
from adagp.schedules.sources import specs
from adagp.training import RecipeError


def test_every_source_has_its_own_letter_and_colour() -> None:
    assert len({spec.letter for spec in specs().values()}) == len(specs())
    assert len({spec.colour for spec in specs().values()}) == len(specs())


def test_shares_are_counted_over_layers_and_batches() -> None:
    grid = schedule_grid(schedules.approximation("2", ["a", "b", "c"], "topk"), ["a", "b", "c"], range(1, 4))
    assert grid.sources == {
        "a": ["backprop"] * 3,
        "b": ["topk", "backprop", "topk"],
        "c": ["backprop"] * 3,
    }
    assert grid.batches == [2, 3, 4]
    assert grid.shares() == {"backprop": 7 / 9, "topk": 2 / 9}


def test_a_picture_depends_on_the_schedule_alone() -> None:
    layers = ["a", "b"]
    one, same, other = (
        grid_picture(schedule_grid(schedules.approximation(name, layers, "zero"), layers, range(4)), "t", "png")
        for name in ("1", "1", "2")
    )
    assert one == same
    assert one != other
    ladder = schedule_grid(schedules.ladder(1, warmup_epochs=2), layers, range(4))
    svg = grid_picture(ladder, "t", "svg").decode()
    assert svg.startswith("<?xml")
    assert "date" not in svg.lower().replace("update", "")


def test_more_batches_than_can_be_shown_or_drawn_are_refused() -> None:
    schedule = schedules.approximation("2", ["a", "b"], "topk")
    with pytest.raises(RecipeError, match=r"batches = 100000000: .*at most 10,000"):
        schedule_grid(schedule, ["a", "b"], range(100_000_000))
    with pytest.raises(RecipeError, match=r"batches = 3000: .*at most 500"):
        grid_picture(schedule_grid(schedule, ["a", "b"], range(3000)), "too wide")


def test_a_schedule_too_long_to_count_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"epochs x steps_per_epoch = 3 x 9000000 .*at most 5,000,000"):
        schedule_table("ladder", schedules.ladder(9_000_000), 3, 9_000_000)


def test_schedule_table_adds_up() -> None:
    table = schedule_table("ladder", schedules.ladder(60), 90, 60)
    assert [row[0] for row in table.rows] == ["1-10", "11-14", "15-18", "19-22", "23-90"]
    assert [row[4] for row in table.rows] == ["0", "48", "45", "40", "30"]
    assert all(len(row[-1]) == 20 for row in table.rows)
