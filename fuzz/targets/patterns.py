"""Regular expressions and names of layers, which users write to choose layers."""

import random
from pathlib import Path

from fuzz.case import Case, Target
from fuzz.commands import TINY, adagp
from fuzz.mutate import damage_text, junk

_PATTERNS = (
    "features",
    "Conv",
    "Linear",
    "Conv|Linear",
    "^features\\.[03]$",
    "(?i)CONV",
    "",
    ".*",
    "(?!)",
    "\\Z",
    "$^",
)
_BROKEN = ("(", "[", "*", "a{99999999999}", "(?P<n", "(?<=a+)b", "\\", "(?z)", "[z-a]", "(a", "a**", "\\1", "(?(1)a|b")
_SLOW = ("(.+)+$x", "(a|a)*$", "(\\w*)*!", "(.*)*\\.(.*)*\\.(.*)*y", "((((.*)*)*)*)*z", "(" * 300 + ")" * 300)


def _make(draw: random.Random, templates: Path) -> Case:
    pattern = draw.choice((draw.choice(_PATTERNS), draw.choice(_BROKEN), draw.choice(_SLOW), junk(draw)))
    if draw.random() < 0.4:
        pattern = damage_text(draw, pattern)
    field = draw.choice(("include", "exclude", "exclude", "until"))
    method = (
        draw.choice(("prefix", "prefix-zero")) if field == "until" else draw.choice(("adagp", "zero", "topk", "bp"))
    )
    words = ("train", *TINY, "--method", method, "--out", "out", "--json", "--set", f"{field}={pattern}")
    # A pattern can be written that takes for ever, in any program that uses Python's; Ctrl-C must end it.
    return Case(f"{words[-3:]!a}"[:500], lambda: adagp(*words), stop_seconds=2)


TARGET = Target("patterns", "regular expressions and layer names", 300, _make)
