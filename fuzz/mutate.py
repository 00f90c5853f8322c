"""Mutations that several targets share."""

import math
import random
import string
from typing import Any

_SIZES = (0, -1, 1, 2, 3, 7, 64, 1000, 2**31, 2**63 - 1, 2**63, 2**64, 10**30)
_NUMBERS = (
    *("0", "-1", "1", "2", "3", "64", "1e3", "0.5", "-0.0", "1e308", "1e999", "nan", "inf", "-inf", "0x10", "1_000"),
)
_WORDS = (
    *("", " ", "\t", "none", "null", "true", "False", "٣", "\uff11\uff12", "½", "é", "名前"),
    *("-", "--", "---", "%s", "{}", "{0}"),
)
_SIGNS = (
    *("[", "(", "[[", "*", "?", "\\", "'", '"', "`", "$HOME", "~", "\n", "a\nb", "1,2", "1,,2", ",", "1x1", "x"),
    *("=", "a=b"),
)
_MARKUP = ("[red]", "[/]", "[bold]x[/bold]", ":smile:", "\x1b[31m", "\x07", "\u202e", "\ufeff", "\udcff", "a\udc80b")
# Without a slash: whatever becomes of a text, it names no place outside of the case's own folder.
_PRINTABLE = string.printable.replace("/", "")


def number_text(draw: random.Random) -> str:
    """Something in the place of a number."""
    match draw.randrange(5):
        case 0:
            return draw.choice(_NUMBERS)
        case 1:
            return str(draw.choice(_SIZES))
        case 2:
            return "9" * draw.choice((20, 400, 5000))
        case 3:
            return str(draw.randint(-5, 300))
        case _:
            return junk(draw)


def junk(draw: random.Random) -> str:
    """Text that nobody expects; an argument of a program can be all of it."""
    match draw.randrange(6):
        case 0:
            return draw.choice(_WORDS)
        case 1:
            return draw.choice(_SIGNS)
        case 2:
            return draw.choice(_MARKUP)
        case 3:
            return draw.choice(_NUMBERS)
        case 4:
            return draw.choice("aA9.-(") * draw.choice((100, 300, 5000))
        case _:
            return "".join(draw.choice(_PRINTABLE) for _ in range(draw.randint(1, 12)))


def value(draw: random.Random, depth: int = 2) -> Any:
    """Any plain value, as JSON knows them."""
    match draw.randrange(9 if depth else 7):
        case 0:
            return draw.choice(_SIZES)
        case 1:
            return draw.choice((0.0, -1.0, 0.5, 1.0, 1e-300, 1e308, math.nan, math.inf, -math.inf))
        case 2:
            return draw.choice((True, False))
        case 3:
            return None
        case 4 | 5:
            return junk(draw)
        case 6:
            return int("9" * draw.choice((20, 400, 4000)))
        case 7:
            return [value(draw, depth - 1) for _ in range(draw.randrange(3))]
        case _:
            return {junk(draw): value(draw, depth - 1) for _ in range(draw.randrange(3))}


def damage(draw: random.Random, content: bytes) -> bytes:
    """The same bytes with a few flipped, lost, doubled, overwritten or added."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        place = draw.randrange(len(found) + 1)
        length = draw.choice((1, 1, 4, 50, 1000))
        match draw.randrange(7):
            case 0 | 1 if place < len(found):
                found[place] ^= 1 << draw.randrange(8)
            case 2:
                del found[place:]
            case 3:
                del found[place : place + length]
            case 4:
                found[place:place] = draw.randbytes(length)
            case 5:
                found[place : place + length] = bytes(len(found[place : place + length]))
            case _:
                found[place:place] = found[place : place + length]
    return bytes(found)


def damage_text(draw: random.Random, text: str) -> str:
    """The same text with a few words or signs changed."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(text) + 1)
        length = draw.choice((0, 1, 1, 3, 20))
        text = text[:place] + draw.choice((junk(draw), "", number_text(draw))) + text[place + length :]
    return text
