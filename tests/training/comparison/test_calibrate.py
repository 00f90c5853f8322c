import pytest

from adagp import Phase, schedules
from adagp.training import (
    Recipe,
)
from adagp.training.comparison.calibrate import Calibration, expected_seconds, kind_counts, plan_shares, steps_within
from adagp.training.planning import outline

COSTS = Calibration(
    seconds={
        "bp": {"BP": 0.3},
        "adagp": {"BP": 0.33, "GP": 0.11},
        "skip": {"BP": 0.3, "GP": 0.0},
        "short-bp": {"BP": 0.3},
    },
    peak_bytes={},
)


def test_kind_counts_follow_the_ladder() -> None:
    recipe = Recipe(method="adagp", warmup_epochs=10, rung_epochs=4)
    # By hand: 10 epochs warm-up; 4 each at 4:1, 3:1 and 2:1; the other 68 at 1:1, of 120 batches each.
    gp = 4 * 120 * 4 // 5 + 4 * 120 * 3 // 4 + 4 * 120 * 2 // 3 + 68 * 120 // 2
    assert kind_counts(recipe, 90 * 120, 120) == {"BP": 90 * 120 - gp, "GP": gp}
    assert kind_counts(recipe.replace(method="bp"), 500, 120) == {"BP": 500}


def test_steps_within_is_the_longest_run_that_fits() -> None:
    for method in ("bp", "adagp", "skip"):
        recipe = Recipe(method=method)
        steps = steps_within(COSTS, recipe, 60.0, 50)
        assert expected_seconds(COSTS, recipe, steps, 50) <= 60.0
        assert expected_seconds(COSTS, recipe, steps + 1, 50) > 60.0
    assert steps_within(COSTS, Recipe(method="bp"), 60.0, 50) == 200
    assert steps_within(COSTS, Recipe(method="bp"), 0.01, 50) == 1


def test_costs_are_counted_by_kind() -> None:
    recipe = Recipe(method="zero", schedule="3", model="resnet20")
    assert kind_counts(recipe, 400, 100) == {"BP": 300, "MIXED": 100}
    costs = Calibration(seconds={"zero": {"BP": 0.4, "MIXED": 0.3}}, peak_bytes={})
    assert expected_seconds(costs, recipe, 400, 100) == pytest.approx(300 * 0.4 + 100 * 0.3)
    assert next(outline("resnet20").parameters()).is_meta


def test_plan_shares_leave_notes_aside_and_see_a_whole_cycle() -> None:
    ladder = schedules.ladder(1, warmup_epochs=2, rung_epochs=10)
    assert [plan.phase for plan, _ in plan_shares(ladder, 2)] == [Phase.GP, Phase.BP]
    header, cells = " ".join(str(batch) for batch in range(1, 81)), " ".join(["backprop"] * 72 + ["zero"] * 8)
    table = schedules.from_table(f"layer {header}\na {cells}\n", ["a"])
    assert [(plan.source("a"), round(share, 6)) for plan, share in plan_shares(table, 0)] == [
        ("backprop", 0.9),
        ("zero", 0.1),
    ]
