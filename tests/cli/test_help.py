"""Help is quick: no command imports torch, numpy or matplotlib to print it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Context, Typer
from typer.core import TyperGroup
from typer.main import get_command

import adagp
from adagp.cli import app
from adagp.cli.commands import COMMANDS
from adagp.cli.reproduce.app import RESULTS, reproduce_app

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(adagp.__file__).parents[1])}
SECONDS = 2.0  # of the processor, which other work slows less than the clock; half a second on a quiet machine
# Asks for one help after the other, and reports after each which slow modules and commands it has imported.
ASK = """
import contextlib, io, json, sys
from adagp.cli.commands import app
for line in sys.stdin:
    code = None
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            app(json.loads(line))
        except SystemExit as end:
            code = end.code
    slow = [name for name in ("torch", "matplotlib", "numpy", "pydantic", "amaranth") if name in sys.modules]
    print(json.dumps([code, slow, "adagp.cli.train" in sys.modules, "Usage: " in shown.getvalue()]))
"""


def every_command() -> list[list[str]]:
    """`adagp` itself, every command of it and every command of those."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    found: list[list[str]] = [[]]
    for name in COMMANDS:
        found.append([name])
        command = root.get_command(Context(root), name)
        if isinstance(command, TyperGroup):
            found += [[name, inner] for inner in command.list_commands(Context(command))]
    return found


def test_no_help_imports_anything_slow() -> None:
    asked = every_command()
    assert ["schedule", "show"] in asked
    assert ["reproduce", "table1"] in asked
    lines = "".join(json.dumps([*words, "--help"]) + "\n" for words in asked)
    done = subprocess.run(
        [sys.executable, "-c", ASK], input=lines, capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0] == [0, [], False, True], "the list of commands imports none of them"
    for words, (code, slow, _, shown) in zip(asked, answers, strict=True):
        assert (code, slow, shown) == (0, [], True), words


@pytest.mark.parametrize("words", [[], ["train"]], ids=["adagp", "train"])
def test_help_is_quick(words: list[str]) -> None:
    best = float("inf")
    for _ in range(3):
        start = _seconds_of_children()
        subprocess.run(
            [sys.executable, "-m", "adagp", *words, "--help"], capture_output=True, check=True, env=ENVIRONMENT
        )
        best = min(best, _seconds_of_children() - start)
    assert best < SECONDS


def _seconds_of_children() -> float:
    found = os.times()
    return found.children_user + found.children_system


@pytest.mark.parametrize(
    ("group", "name", "summary"),
    [(app, name, listed.summary) for name, listed in COMMANDS.items()]
    + [(reproduce_app, name, listed.summary) for name, listed in RESULTS.items()],
)
def test_the_summary_of_a_command_begins_its_own_help(group: Typer, name: str, summary: str) -> None:
    root = get_command(group)
    assert isinstance(root, TyperGroup)
    command = root.get_command(Context(root), name)
    assert command.help is not None
    assert command.help.splitlines()[0] == summary
