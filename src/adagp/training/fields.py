"""Declared types and rules of a dataclass's fields: `epochs: Annotated[int, Range(least=1)]`.

Pydantic would add a dependency and a tenth of a second to every `--help`, and its messages would need rewriting.
"""

import dataclasses
import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints


class Rule(Protocol):
    """A condition on the value of one field."""

    def problem(self, name: str, value: Any) -> str | None:
        """Why the field cannot have this value, with the remedy; None if it can."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between two bounds, each optional; always finite."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def problem(self, name: str, value: Any) -> str | None:
        """See `Rule`."""
        wanted = [] if self.most is not None or self.below is not None else ["finite"]
        holds = math.isfinite(value)
        for bound, word, compare in (
            (self.least, "at least", operator.ge),
            (self.above, "more than", operator.gt),
            (self.most, "at most", operator.le),
            (self.below, "below", operator.lt),
        ):
            if bound is not None:
                wanted.append(f"{word} {bound}")
                holds = holds and compare(value, bound)
        return None if holds else f"{name} = {value} is out of range: it must be {' and '.join(wanted)}"


@dataclasses.dataclass(frozen=True)
class OneOf:
    """One of several names, which are looked up only when they are needed."""

    names: Callable[[], Sequence[str]]

    def problem(self, name: str, value: Any) -> str | None:
        """See `Rule`."""
        known = self.names()
        if value in known:
            return None
        return f"unknown {name} '{value}'{did_you_mean(value, known)}: choose one of {', '.join(known)}"


class Expression:
    """A regular expression."""

    def problem(self, name: str, value: Any) -> str | None:
        """See `Rule`."""
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError):
            return f"{name} = {value!r} is not a regular expression: write for example 'layer[12]'"
        return None


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What a field is declared to hold."""

    type: type
    optional: bool
    rules: tuple[Rule, ...]

    def problem(self, name: str, value: Any) -> str | None:
        """See `Rule`."""
        if value is None and self.optional:
            return None
        if type(value) is int and not _fits(value):
            return f"{name} is too large: a number of {value.bit_length()} bits"
        accepted = (float, int) if self.type is float else (self.type,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.type is not bool):
            wanted = f"{self.type.__name__} | None" if self.optional else self.type.__name__
            return f"{name} = {value!r} is a {type(value).__name__}: give a value of type {wanted}"
        return next((problem for rule in self.rules if (problem := rule.problem(name, value))), None)


@cache
def declarations(cls: type) -> Mapping[str, Declaration]:
    """The declaration of each field of a dataclass."""
    return {name: _declaration(hint) for name, hint in get_type_hints(cls, include_extras=True).items()}


def _declaration(hint: Any) -> Declaration:
    options = [part for part in get_args(hint) if part is not type(None)]
    optional = type(None) in get_args(hint)
    inner = options[0] if optional else hint
    base, *rules = get_args(inner) if get_origin(inner) is Annotated else (inner,)
    return Declaration(get_origin(base) or base, optional, tuple(rules))


def field_problems(record: object) -> list[str]:
    """Every field whose value breaks its declaration, in words."""
    cls: type = type(record)
    found = (declared.problem(name, getattr(record, name)) for name, declared in declarations(cls).items())
    return [problem for problem in found if problem]


def as_declared(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with whole numbers turned into floats where a float is declared, so that `lr = 1` means 1.0."""
    declared = declarations(cls)
    return {
        name: float(value) if declared[name].type is float and type(value) is int and _fits(value) else value
        for name, value in values.items()
    }


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint at the closest known name, for an error message."""
    close = difflib.get_close_matches(name[:64], known, 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _fits(value: int) -> bool:
    """Whether a number has at most 64 bits: torch takes no larger ones, and printing them may fail."""
    return value.bit_length() < 64
