from typing import Any

import pytest

from adagp.training import (
    Recipe,
    RecipeError,
    Settings,
    methods,
)


@pytest.mark.parametrize(
    ("names", "seeds", "budget", "message"),
    [
        (("bp", "nothing"), (0,), None, "unknown methods nothing"),
        ((), (0,), None, "at least one"),
        (("bp", "bp"), (0,), None, "each method once"),
        (("bp",), (), None, "seeds"),
        (("bp",), (1, 1), None, "each seed once"),
        (("bp", "short-bp"), (0,), None, "time of another method"),
        (("bp",), (True,), None, "whole numbers"),
        (("bp",), (0,), -3.0, "budget"),
    ],
)
def test_unusable_settings(names: tuple[str, ...], seeds: tuple[int, ...], budget: float | None, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Settings(Recipe(method="bp"), names, seeds, budget)


@pytest.mark.parametrize(
    ("changes", "names", "budget", "message"),
    [
        ({"steps": 20}, ("bp", "skip"), 3.0, "steps = 20 and a budget.*give one"),
        ({"predictor": "trusted"}, ("bp", "adagp", "adagp-paper"), None, "contradicts method adagp-paper.*leave"),
        ({"predictor": "paper"}, ("bp", "skip"), None, "change nothing.*adagp, adaptive, prefix"),
    ],
)
def test_a_recipe_that_would_be_ignored_or_mislabelled(
    changes: dict[str, Any], names: tuple[str, ...], budget: float | None, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        Settings(Recipe(method="bp").replace(**changes), names, (0,), budget)


@pytest.mark.parametrize(
    ("lr_schedule", "said", "not_said"),
    [
        ("cosine", "decayed to zero within it", "constant"),
        ("step", "decayed in full within it", "constant"),
        ("constant", "learning rate constant, not decayed", "within it"),
        ("plateau", "when the test loss stalls, not fitted", "within it"),
    ],
)
def test_the_protocol_is_true_to_the_learning_rate(lr_schedule: str, said: str, not_said: str) -> None:
    recipe = Recipe(method="bp", lr_schedule=lr_schedule)
    for settings in (
        Settings(recipe, ("bp", "skip"), (0,), 60.0),
        Settings(recipe, ("bp", "adagp-paper", "short-bp"), (0,)),
    ):
        assert said in settings.protocol
        assert not_said not in settings.protocol
    assert "the time of adagp-paper," in settings.protocol
    assert "rate" not in methods.get("short-bp").summary  # which differs; the protocol tells it


def test_the_protocol_names_the_length() -> None:
    assert Settings(Recipe(method="bp", epochs=3), ("bp",), (0,)).protocol == "3 epochs each"
    assert Settings(Recipe(method="bp", epochs=3, steps=7), ("bp",), (0,)).protocol == "7 batches each"
