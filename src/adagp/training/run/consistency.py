"""Contradictions between the parts of a saved state, each of which is well-formed by itself."""

from typing import Any

from adagp.training.batch_kinds import BATCH_KINDS
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe

_TIMES = ("batch_seconds", "predictor_batch_seconds")


def contradiction(state: dict[str, Any], *, total_steps: int, total_epochs: int, metric: str) -> str | None:
    """Why no run of this length, judged by this metric, can be in that state; None if one can."""
    step, records, tally = state["gp"]["progress"]["step_index"], state["records"], state["tally"]
    if step > total_steps or len(records) > total_epochs:
        return f"it is at batch {step} after {len(records)} epochs of {total_steps} and {total_epochs}"
    kinds = set(BATCH_KINDS)
    if any(record[part].keys() != kinds for record in records for part in ("batches", "seconds")):
        return "records has other kinds of batches"
    if any(metric not in record["metrics"] for record in records):
        return f"records lacks {metric}"
    if any(state[part].keys() != kinds for part in _TIMES):
        return "batch_seconds has other kinds of batches"
    counted = sum(sum(part["batches"].values()) for part in (*records, tally))
    timed = [sum(map(len, state[part].values())) for part in _TIMES]
    if [counted, *timed] != [step] * 3:
        return f"it is at batch {step}, but counts {counted} batches and times {timed[0]} and {timed[1]}"
    return None


def other_recipe(recipe: Recipe, state: dict[str, Any]) -> str:
    """How the recipe of a saved state differs, and the remedy."""
    try:
        differences = ", ".join(recipe.differences(Recipe(**state["recipe"])))
    except (KeyError, TypeError, RecipeError):
        differences = "it holds no recipe of this version"
    return f"the checkpoint belongs to another run ({differences}): resume with the recipe it was made with"
