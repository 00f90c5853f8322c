"""The page of every number: complete, without an empty cell, and what the command writes."""

import re
from pathlib import Path

import pytest

from adagp.cli.commands import COMMANDS
from adagp.cli.reproduce.app import RESULTS
from adagp.reproduce.accuracy import PAPER_TABLE_1
from adagp.reproduce.numbers import Row, Verdict, accuracy, approximation, hardware, method, numbers, page
from adagp.reproduce.numbers.hardware import OURS_4, OURS_5

PAGE = Path(__file__).parents[3] / "docs" / "paper-numbers.md"


def test_no_cell_is_empty() -> None:
    with pytest.raises(ValueError, match="a cell is empty"):
        Row("figure 1", "a claim", "1", Verdict.OPEN, "", "no reason")
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            assert all(cell.strip() for cell in line.strip("|").split(" | ")), line


def test_cheap_rows_are_those_of_the_page() -> None:
    """What needs no simulation: a change of a verdict or a value must reach the page."""
    text = PAGE.read_text(encoding="utf-8")
    for row in (*method.rows(), *accuracy.rows(), *hardware.rows(), *approximation.rows()):
        cells = (row.where, row.what, row.theirs, row.verdict.value, row.ours, row.how)
        assert f"| {' | '.join(cells)} |" in text, row


def test_every_table_and_figure_has_a_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    later, earlier, _, approximations = text.split("\n## ")[1:]
    for part, figures, tables in ((later, 21, 5), (earlier, 18, 4), (approximations, 8, 5)):
        places = [line.split(" | ")[0].strip("| ") for line in part.splitlines() if line.startswith("| ")]
        for word, count in (("figure", figures), ("table", tables)):
            named: set[int] = set()
            for place in places:
                for names in re.findall(rf"{word}s? ([\d, to]+)", place):
                    numbers_named = [int(number) for number in re.findall(r"\d+", names)]
                    if " to " in names:
                        numbers_named = list(range(numbers_named[0], numbers_named[-1] + 1))
                    named |= set(numbers_named)
            assert set(range(1, count + 1)) <= named, (word, sorted(set(range(1, count + 1)) - named))
    assert sum(line.startswith("| table 1 | ") for line in later.splitlines()) == 3 * len(PAPER_TABLE_1)


def test_commands_of_the_page_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`adagp (\w[\w-]*)(?: ([\w-]+))?", text))
    assert named
    for command, inner in named:
        assert command in COMMANDS
        if command == "reproduce":
            assert inner in RESULTS, inner


@pytest.mark.slow
def test_the_page_is_what_the_command_writes() -> None:
    assert page(numbers()) == PAGE.read_text(encoding="utf-8")


def test_recorded_resources_are_those_of_the_hardware_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text(encoding="utf-8")
    names = {"Baseline": "baseline", "LOW": "low", "Efficient": "efficient", "MAX": "max"}
    tables = {"Table 4, ": OURS_4, "Table 5, ": OURS_5}
    for title, recorded in tables.items():
        lines = [line for line in page.split(title)[1].split("\n\n")[1].splitlines() if line.startswith("|")][2:]
        cells = [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in lines]
        found = {names[name]: rest for name, *rest in cells}
        for design, ours in recorded.items():
            shown = found[design.value]
            expected = [str(value) for value in ours] if isinstance(ours, tuple) else [str(ours)]
            assert shown[: 2 * len(expected) : 2] == expected, (title, design)
