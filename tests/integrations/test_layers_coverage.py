"""The table of docs/layers.md, with the real libraries."""

from pathlib import Path

import pytest

from scripts.layer_coverage import MODELS, table

PAGE = Path(__file__).parents[2] / "docs" / "layers.md"


def test_the_page_has_the_table() -> None:
    for library in ("transformers", "diffusers", "torch_geometric"):
        pytest.importorskip(library)
    assert len(MODELS) >= 9
    lines = table()
    assert all(line in PAGE.read_text() for line in lines), "run python -m scripts.layer_coverage, and paste its table"
    shares = [float(line.split("|")[3].strip()) for line in lines[2:]]
    assert min(shares) >= 90
