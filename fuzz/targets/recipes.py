"""Recipe files, TOML and JSON: wrong values, wrong text, wrong encodings, and what is no file."""

import json
import math
import random
import tomllib
from pathlib import Path
from typing import Any

from adagp.training import Recipe, Run, load_preset, load_recipe, preset_names
from fuzz.case import Case, Target
from fuzz.commands import TINY, adagp, digits, library, odd_file
from fuzz.mutate import damage, damage_text, junk, value

_BASE: dict[str, Any] = {"model": "cnn", "data": "digits", "method": "adagp", "batch_size": 32, "train_limit": 64}
_FIELDS = tuple(Recipe().to_dict())
_QUICK = ("cnn", "cnn2")


def _make(draw: random.Random, templates: Path) -> Case:
    path = Path(draw.choice(("mine.toml", "mine.json")))
    about, content = _content(draw, path.suffix == ".json")
    if content is None:
        about = odd_file(draw, path)
    else:
        path.write_bytes(content)
    about = f"{path.name}: {about}"
    if draw.random() < 0.3:
        return Case(
            about, lambda: adagp("train", "--recipe", str(path), *TINY, "--out", "out", "--json"), stop_seconds=4
        )
    return Case(about, lambda: library(lambda: _use(path)), lambda: _differs(path))


def _content(draw: random.Random, as_json: bool) -> tuple[str, bytes | None]:
    match draw.randrange(10):
        case 0 | 1 | 2 | 3:
            changed = {_name(draw): value(draw) for _ in range(draw.choice((1, 1, 2, 3)))}
            text = _written(_BASE | changed, as_json)
            return f"fields {', '.join(map(ascii, changed))}"[:200], text.encode(errors="surrogatepass")
        case 4 | 5:
            text = _written(_shipped(draw), as_json)
            return "damaged text", damage_text(draw, text).encode(errors="surrogatepass")
        case 6:
            return "damaged bytes", damage(draw, _written(_shipped(draw), as_json).encode())
        case 7:
            deep = draw.choice((100, 1000, 5000, 100_000))
            opening, closing = draw.choice((("[", "]"), ('{"a":', "}"), ("{a=", "}")))
            text = opening * deep + draw.choice(("1", "")) + closing * deep * draw.randrange(2)
            field = draw.choice(("sizes", "lr", "x"))
            return f"nested {deep} deep", (f'{{"{field}": {text}}}' if as_json else f"{field} = {text}").encode()
        case 8:
            text = _written(_BASE | {"about": draw.choice(("é", "名前", "plain"))}, as_json)
            encoding = draw.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "cp037", "nul", "cr"))
            return f"written in {encoding}", _encoded(text, encoding)
        case _:
            return "no file", None


def _name(draw: random.Random) -> str:
    return draw.choice((*_FIELDS, *_FIELDS, "sizes.width", "sizes", "compare", "about", "", junk(draw)))


def _shipped(draw: random.Random) -> dict[str, Any]:
    recipe = load_preset(draw.choice(preset_names())).recipe
    return {name: given for name, given in recipe.to_dict().items() if given is not None}


def _written(values: dict[str, Any], as_json: bool) -> str:
    if as_json:
        return json.dumps(values, ensure_ascii=False, indent=1)
    return "".join(f"{_key(name)} = {_toml(given)}\n" for name, given in values.items())


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)


def _toml(given: Any) -> str:
    if isinstance(given, dict):
        return "{" + ", ".join(f"{_key(name)} = {_toml(inner)}" for name, inner in given.items()) + "}"
    if isinstance(given, list):
        return "[" + ", ".join(map(_toml, given)) + "]"
    if isinstance(given, float) and not math.isfinite(given):
        return str(given)
    return '"null"' if given is None else json.dumps(given, ensure_ascii=False)


def _encoded(text: str, encoding: str) -> bytes:
    match encoding:
        case "nul":
            return text.replace("\n", "\n\0").encode()
        case "cr":
            return text.replace("\n", "\r").encode()
        case _:
            return text.encode(encoding, errors="replace")


def _use(path: Path) -> None:
    """Load it; where that is quick, also train the first batch."""
    recipe = load_recipe(path).recipe
    if recipe.model in _QUICK and recipe.data == "digits":
        Run(recipe, digits()).step()


def _differs(path: Path) -> str | None:
    """Every value of the file is in the recipe."""
    text = path.read_text(encoding="utf-8-sig")  # a reader may or may not take a mark or Mac's line ends; all are text
    values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    found = load_recipe(path).recipe.to_dict()
    for name, given in values.items():
        if name in found and not (found[name] == given or (given != given and found[name] != found[name])):
            return f"{name} is {found[name]!r}, the file says {given!r}"
    return None


TARGET = Target("recipes", "recipe files, TOML and JSON", 900, _make)
