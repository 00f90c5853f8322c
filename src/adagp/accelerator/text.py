"""Sizes as people write them: `3`, `12x15`, `int:16`, `c_in=64,c_out=64,out=32x32,kernel=3`."""

from dataclasses import replace
from typing import NamedTuple

from adagp.accelerator.array import Array
from adagp.accelerator.shapes import LayerShape

_NUMBERS = ("c_in", "c_out", "groups")
_SIZES = {"out": "out", "kernel": "kernel", "stride": "stride", "in": "image"}


class InputShape(NamedTuple):
    """One argument of a network's forward, without the batch.

    Attributes:
        sizes: Its shape.
        integers: Whether it holds integers, such as the tokens of an embedding.
    """

    sizes: tuple[int, ...]
    integers: bool = False


def parse_layer(text: str, batch: int) -> LayerShape:
    """The layer that a text such as `c_in=64,c_out=64,out=32x32,kernel=3` describes.

    Raises:
        ValueError: If a key is unknown or a value is not allowed.
    """
    known = (*_NUMBERS, *_SIZES)
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in known:
            raise ValueError(f"layer: '{part}' is not KEY=VALUE with a known key; known keys: {', '.join(known)}")
        if key in values:
            raise ValueError(f"layer: {key} is given twice; leave one out")
        values[key] = value
    for key in ("c_in", "c_out"):
        if key not in values:
            raise ValueError(f"layer: {key} is missing; give for example c_in=64,c_out=64,out=32x32,kernel=3")
    numbers = {key: integer(key, values[key]) for key in _NUMBERS if key in values}
    sizes = {name: _pair(key, values[key]) for key, name in _SIZES.items() if key in values}
    return LayerShape(**numbers, **sizes, batch=batch)  # type: ignore[arg-type]


def parse_array(name: str, text: str, like: Array) -> Array:
    """The array that a text such as `12x15` describes, with the memories of `like`.

    Raises:
        ValueError: If it is not two integers, or has no PE.
    """
    try:
        rows, columns = (int(part) for part in text.split("x"))
    except ValueError:
        raise ValueError(f"{name}={text}: is not ROWSxCOLUMNS; give for example 12x15") from None
    try:
        return replace(like, rows=rows, columns=columns)
    except ValueError as error:
        raise ValueError(str(error).replace("array=", f"{name}=", 1)) from None


def parse_sizes(name: str, text: str) -> tuple[int, ...]:
    """Sizes such as `3x32x32`.

    Raises:
        ValueError: If they are not integers.
    """
    return tuple(integer(name, part) for part in text.split("x"))


def parse_inputs(name: str, text: str) -> tuple[InputShape, ...]:
    """Arguments of a forward: `3x32x32`, or `int:16,int:16` for two of integers.

    Raises:
        ValueError: If they are not sizes.
    """
    parts = [part.strip() for part in text.split(",")]
    return tuple(InputShape(parse_sizes(name, part.removeprefix("int:")), part.startswith("int:")) for part in parts)


def _pair(key: str, text: str) -> tuple[int, int]:
    """`3` is short for `3x3`."""
    high, by, wide = text.partition("x")
    return integer(key, high), integer(key, wide if by else high)


def integer(name: str, text: str) -> int:
    """The integer that a text holds.

    Raises:
        ValueError: If it is not an integer; the message has the name.
    """
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"{name}: '{text[:80]}' is not an integer of bearable size; give for example {name}=3"
        ) from None
