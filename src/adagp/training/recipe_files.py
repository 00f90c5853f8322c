"""Recipes in files: the presets shipped with the package, recipe files of users, and `field=value` assignments."""

import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from adagp.files import parse_json, parse_toml, read_text
from adagp.training.budget.options import BudgetOptions
from adagp.training.errors import RecipeError
from adagp.training.recipe import Recipe

DEFAULT_METHODS = ("bp", "adagp", "skip", "mean", "short-bp")
DEFAULT_SEEDS = (0, 1)
_PRESETS = resources.files("adagp.training") / "presets"


@dataclass(frozen=True)
class Preset:
    """A recipe file: the recipe, and what `compare` does with it.

    Attributes:
        name: The preset's name or the file's stem.
        about: One line for the user.
        recipe: The recipe.
        methods: The methods that `compare` runs.
        seeds: The seeds that `compare` runs each method with.
        budget: How `compare --protocol budget` tunes them and how long they train.
    """

    name: str
    about: str
    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    budget: BudgetOptions = field(default_factory=BudgetOptions)


def preset_names() -> list[str]:
    """The names of the presets shipped with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """A preset shipped with the package.

    Raises:
        RecipeError: When no preset has that name; the message lists them.
    """
    if name not in preset_names():
        raise RecipeError(f"unknown preset '{name}': choose one of {', '.join(preset_names())}")
    return _parse(name, _preset_values(name))


def preset_summaries() -> dict[str, str]:
    """One line about each preset, for help texts; the recipes are not checked."""
    return {name: str(_preset_values(name)["about"]) for name in preset_names()}


def _preset_values(name: str) -> dict[str, Any]:
    return _on_base(name, _read(f"{name}.toml"))


def _on_base(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The content of a recipe file, on top of that of its `base`, one of those in the folder `bases`.

    Raises:
        RecipeError: When there is no such base.
    """
    if "base" not in values:
        return values
    known = sorted(entry.name.removesuffix(".toml") for entry in (_PRESETS / "bases").iterdir())
    if values["base"] not in known:
        raise RecipeError(f"recipe '{name}': base = {values['base']!r} is unknown: choose one of {', '.join(known)}")
    others = {field: value for field, value in values.items() if field != "base"}
    return _read(f"bases/{values['base']}.toml") | others


def _read(path: str) -> dict[str, Any]:
    return parse_toml(_PRESETS.joinpath(path).read_text(encoding="utf-8"))


def load_recipe(path: Path) -> Preset:
    """The recipe in a file: TOML, or JSON as in run folders.

    Raises:
        RecipeError: When the file cannot be read or does not hold a recipe.
    """
    try:
        text = read_text(path)
        values = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except OSError as error:
        raise RecipeError(f"recipe file '{path}' cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RecipeError(
            f"recipe file '{path}' is not valid: {error}; it must be TOML, or JSON named .json"
        ) from error
    if not isinstance(values, dict):
        raise RecipeError(f"recipe file '{path}' holds no table of fields: write lines such as lr = 0.1")
    return _parse(path.stem, _on_base(path.stem, values))


def _parse(name: str, values: dict[str, Any]) -> Preset:
    values = dict(values)
    about = str(values.pop("about", ""))
    compare = values.pop("compare", {})
    if not isinstance(compare, dict) or set(compare) - {"methods", "seeds"}:
        raise RecipeError(f"recipe '{name}': [compare] may hold only 'methods' and 'seeds'")
    chosen, seeds = compare.get("methods", list(DEFAULT_METHODS)), compare.get("seeds", list(DEFAULT_SEEDS))
    if not isinstance(chosen, list) or not all(isinstance(part, str) for part in chosen):
        raise RecipeError(f'recipe \'{name}\': [compare] methods must be a list of names, such as ["bp", "adagp"]')
    if not isinstance(seeds, list) or not all(type(part) is int for part in seeds):
        raise RecipeError(f"recipe '{name}': [compare] seeds must be a list of whole numbers, such as [0, 1]")
    budget = values.pop("budget", {})
    if not isinstance(budget, dict):
        raise RecipeError(f"recipe '{name}': [budget] must be a table, such as rates = [0.1, 0.2]")
    return Preset(
        name=name,
        about=about,
        recipe=Recipe.from_mapping(values),
        methods=tuple(chosen),
        seeds=tuple(seeds),
        budget=BudgetOptions.from_mapping(budget),
    )


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse one `field=value` of the command line. A value that is not TOML is a bare string.

    Raises:
        RecipeError: When there is no `=`, or no recipe can hold such a value.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise RecipeError(f"'{text}' sets nothing: write field=value, for example lr=0.1")
    if value.lower() in ("none", "null"):
        return name, None
    try:
        table = parse_toml(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return name, value
    except ValueError as error:
        raise RecipeError(f"{name} cannot be set: {error}") from None
    return name, table["value"] if len(table) == 1 else value
