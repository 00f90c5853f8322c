"""JSON and TOML without trust in what they hold: bounded depth and numbers, every field once, no NaN."""

import json
import math
import tomllib
from typing import Any


def parse_json(text: str) -> Any:
    """Strict JSON: no NaN, no name twice, nothing that is too large or too deep to work with (see `_bearable`).

    Raises:
        ValueError: When it is something else.
    """
    try:
        return _bearable(json.loads(text, parse_constant=_no_number, parse_int=_whole, object_pairs_hook=_object))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """TOML with nothing in it that is too large or too deep to work with (see `_bearable`).

    Raises:
        ValueError: When it is something else; `tomllib.TOMLDecodeError` where it is no TOML at all.
    """
    try:
        table: dict[str, Any] = _bearable(tomllib.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python converts no number of thousands of digits
        raise ValueError(_TOO_LARGE if "digits" in str(error) else str(error)) from None
    return table


_DEEPEST = 64
_LARGEST = 2**63 - 1
_TOO_DEEP = f"it is nested more than {_DEEPEST} levels deep"
_TOO_LARGE = f"a whole number in it is too large: at most {_LARGEST}"


def _bearable(value: Any) -> Any:
    """The value, if other code can work with it: 64-bit numbers, and no deeper than a recursive function can go."""
    level, depth = [value], 0
    while level:
        if depth > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        if any(isinstance(item, int) and abs(item) > _LARGEST for item in level):
            raise ValueError(_TOO_LARGE)
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level, depth = [item for items in inner for item in items], depth + 1
    return value


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(_TOO_LARGE)
    return int(digits)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' is there twice")
    return found


def strict(value: Any) -> Any:
    """`value` with every NaN and infinity replaced by None, which JSON has no other word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value
