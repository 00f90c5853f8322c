"""The page's table of speed-ups is the one that was clocked."""

import json
from pathlib import Path

from typer.testing import CliRunner

from adagp.accelerator.rtl.speedup import CASES, Clocked
from adagp.cli import app
from adagp.report.hardware_speedup import speedup_table
from adagp.report.table import to_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_what_was_clocked():
    """If this fails, put the table between the marks of docs/hardware.md."""
    found = [Clocked.of(each) for each in json.loads((DOCS / "rtl-speedup.json").read_text())["batches"]]
    table = to_markdown(speedup_table("", found)).split("\n\n")[1]
    page = (DOCS / "hardware.md").read_text()
    assert page.partition("<!-- speedup -->\n")[2].partition("\n<!-- /speedup -->")[0] == table
    assert len(found) % len(CASES) == 0
    assert all(batch.bit_exact and batch.cycles == batch.model_cycles for batch in found)


def test_what_was_clocked_fits_a_terminal_of_80_columns():
    file = str(DOCS / "rtl-speedup.json")
    arguments = ["hardware", "speedup", "--layers", "none", "--cnn-batch", "0", "--file", file]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
