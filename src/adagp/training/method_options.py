"""Options of a recipe that its methods ignore or cannot use."""

from collections.abc import Sequence

from adagp.schedules import APPROXIMATIONS
from adagp.training import methods
from adagp.training.methods import Planning
from adagp.training.recipe import Recipe


def unused_options(names: Sequence[str], recipe: Recipe) -> list[str]:
    """What a recipe sets that none of these methods uses, or that one of them cannot use, in words."""
    plannings = {methods.get(name).planning for name in names}
    problems = _schedule_problems(names, recipe.schedule)
    cells = recipe.schedule if Planning.TABLE in plannings and recipe.schedule else ""
    if (recipe.topk != 1 or recipe.topk_scale != 1) and "topk" not in names and "topk" not in cells:
        problems.append(_unused("topk and topk_scale", names, "topk, and for tables that contain topk"))
    sampled = {"sampled", "economical"} & set(names) or "sampled" in cells
    if (recipe.rate != Recipe.rate and not ("sampled" in names or "sampled" in cells)) or (
        recipe.keep != Recipe.keep and not sampled
    ):
        problems.append(_unused("rate or keep", names, "sampled, and for tables that contain sampled"))
    if recipe.until is not None and Planning.PREFIX not in plannings:
        problems.append(_unused("until", names, "prefix and prefix-zero"))
    if recipe.levels != Recipe.levels and not {"progressive", "growing"} & set(names):
        problems.append(_unused(f"levels = {recipe.levels}", names, "progressive and growing"))
    if recipe.scale != Recipe.scale and not {"coarse", "small-size"} & set(names):
        problems.append(_unused(f"scale = {recipe.scale}", names, "coarse and small-size"))
    local = {"parts": Recipe.parts, "cuts": Recipe.cuts, "head": Recipe.head}
    changed = [name for name, default in local.items() if getattr(recipe, name) != default]
    if changed and Planning.LOCAL not in plannings:
        problems.append(_unused(" and ".join(changed), names, "local"))
    chosen = {"adagp", "adaptive", "prefix"} & set(names) or ("adagp-paper" in names and recipe.predictor == "paper")
    if recipe.predictor is not None and not chosen and "predicted" not in cells:
        users = "adagp, adaptive, prefix, and for tables that contain predicted"
        problems.append(_unused(f"predictor = {recipe.predictor}", names, users))
    return problems


def _schedule_problems(names: Sequence[str], schedule: str | None) -> list[str]:
    approximating = [name for name in names if methods.get(name).planning is Planning.APPROXIMATION]
    is_table = schedule is not None and "\n" in schedule
    tables = [name for name in names if methods.get(name).planning is Planning.TABLE]
    if tables and not is_table:
        return [
            f"method {tables[0]} needs a table as its schedule: name its file by --schedule (see `adagp schedule show`)"
        ]
    if approximating and is_table:
        known = ", ".join(APPROXIMATIONS)
        return [f"method {approximating[0]} takes a schedule by name ({known}): for a table use method table"]
    if approximating and schedule is not None and schedule not in APPROXIMATIONS:
        return [
            f"unknown schedule '{schedule}': choose one of {', '.join(APPROXIMATIONS)}, or method table with a file"
        ]
    if schedule is not None and not approximating and not tables:
        return [_unused("schedule", names, "zero, random, topk, table and advised")]
    return []


def _unused(what: str, names: Sequence[str], users: str) -> str:
    return f"{what} would change nothing for {', '.join(names)}: it is for {users}"
