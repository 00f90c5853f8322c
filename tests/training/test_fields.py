from dataclasses import dataclass
from typing import Annotated

import pytest

from adagp.training.fields import Expression, OneOf, Range, as_declared, field_problems


@dataclass
class Record:
    count: Annotated[int, Range(least=1, most=9)] = 1
    rate: Annotated[float, Range(above=0)] = 0.5
    share: Annotated[float, Range(least=0, below=1)] | None = None
    name: Annotated[str, OneOf(lambda: ["red", "green"])] = "red"
    pattern: Annotated[str, Expression()] | None = None
    flag: bool = False
    sizes: dict[str, int] | None = None


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("count", 0, "count = 0 is out of range: it must be at least 1 and at most 9"),
        ("count", 10, "count = 10 is out of range: it must be at least 1 and at most 9"),
        ("count", 1.0, "count = 1.0 is a float: give a value of type int"),
        ("count", True, "count = True is a bool: give a value of type int"),
        ("count", None, "count = None is a NoneType: give a value of type int"),
        ("count", 2**64, "count is too large: a number of 65 bits"),
        ("rate", 0, "rate = 0 is out of range: it must be finite and more than 0"),
        ("rate", float("inf"), "rate = inf is out of range: it must be finite and more than 0"),
        ("rate", float("nan"), "rate = nan is out of range: it must be finite and more than 0"),
        ("share", 1.0, "share = 1.0 is out of range: it must be at least 0 and below 1"),
        ("share", "half", "share = 'half' is a str: give a value of type float | None"),
        ("name", "gren", "unknown name 'gren' (did you mean 'green'?): choose one of red, green"),
        ("pattern", "(", "pattern = '(' is not a regular expression: write for example 'layer[12]'"),
        ("flag", 1, "flag = 1 is a int: give a value of type bool"),
        ("sizes", 3, "sizes = 3 is a int: give a value of type dict | None"),
    ],
)
def test_what_breaks_a_declaration_is_named_with_the_remedy(field: str, value: object, problem: str) -> None:
    assert field_problems(Record(**{field: value})) == [problem]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"), [("count", 9), ("rate", 2), ("share", 0), ("share", None), ("pattern", "a|b"), ("sizes", {})]
)
def test_what_keeps_it_passes(field: str, value: object) -> None:
    assert field_problems(Record(**{field: value})) == []  # type: ignore[arg-type]


def test_whole_numbers_become_floats_where_a_float_is_declared() -> None:
    values = as_declared(Record, {"count": 2, "rate": 2, "share": None})
    assert values == {"count": 2, "rate": 2.0, "share": None}
    assert [type(value) for value in values.values()] == [int, float, type(None)]
