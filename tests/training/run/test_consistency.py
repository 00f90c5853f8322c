from typing import Any

import pytest

from adagp.training import Recipe
from adagp.training.batch_kinds import BATCH_KINDS
from adagp.training.run.consistency import contradiction, other_recipe


def state() -> dict[str, Any]:
    """Three batches: an epoch of two, and one more."""

    def figures(count: int) -> dict[str, Any]:
        return {"batches": dict.fromkeys(BATCH_KINDS, 0) | {"BP": count}, "seconds": dict.fromkeys(BATCH_KINDS, 0.0)}

    times = {kind: [0.1] * 3 if kind == "BP" else [] for kind in BATCH_KINDS}
    return {
        "gp": {"progress": {"step_index": 3}},
        "records": [{**figures(2), "metrics": {"accuracy": 0.5}}],
        "tally": figures(1),
        "batch_seconds": times,
        "predictor_batch_seconds": dict(times),
    }


def found(changed: dict[str, Any], total_steps: int = 4, metric: str = "accuracy") -> str | None:
    return contradiction(changed, total_steps=total_steps, total_epochs=2, metric=metric)


def test_a_state_that_can_be() -> None:
    assert found(state()) is None


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("gp", {"progress": {"step_index": 2}}, "it is at batch 2, but counts 3 batches and times 3 and 3"),
        ("predictor_batch_seconds", dict.fromkeys(BATCH_KINDS, ()), "but counts 3 batches and times 3 and 0"),
        ("batch_seconds", {"BP": [0.1] * 3}, "batch_seconds has other kinds"),
        ("records", [{"batches": {}, "seconds": {}, "metrics": {}}], "records has other kinds"),
    ],
)
def test_parts_that_contradict_each_other(part: str, value: Any, problem: str) -> None:
    assert problem in str(found(state() | {part: value}))


def test_a_state_of_a_longer_run_or_another_task() -> None:
    assert found(state(), total_steps=2) == "it is at batch 3 after 1 epochs of 2 and 2"
    assert found(state(), metric="bleu") == "records lacks bleu"


def test_another_recipe_is_described() -> None:
    recipe = Recipe(seed=1)
    assert "(seed 1 against 0): resume with" in other_recipe(recipe, {"recipe": Recipe().to_dict()})
    assert "(it holds no recipe of this version)" in other_recipe(recipe, {"recipe": {"sead": 0}})
