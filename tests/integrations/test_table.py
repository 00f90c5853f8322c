"""The table of trials in the docs names tests that are there, and leaves none out that shows a feature."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFUSALS = ("refused", "missing", "leaves_no_plan", "leftover", "second_fit")
"""What tests of mistakes and of tidiness have in their names: these are no features."""


def test_every_row_is_a_test_and_every_feature_a_row() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+\.py::test_\w+)`", page))
    there = {
        f"{path.name}::{node.name}"
        for path in Path(__file__).parent.glob("test_*.py")
        if "\nneeds(" in path.read_text(encoding="utf-8")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert named <= there
    assert {name for name in there - named if not any(word in name for word in REFUSALS)} == set()
