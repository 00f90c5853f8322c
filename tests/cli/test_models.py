import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adagp import models
from adagp.cli import app
from adagp.models import registry
from tests.models import published


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of a few networks says as much about the listing as one of all."""
    few = {key: form for key, form in registry._builders.items() if key[0] in ("cnn", "resnet50", "transformer")}
    monkeypatch.setattr(registry, "_builders", few)


def call(*words: str, columns: int = 160) -> str:
    result = CliRunner().invoke(app, ["models", *words], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_lists_every_network_and_form_with_its_parameters() -> None:
    rows = json.loads(call("--json"))
    assert [(row["name"], row["form"]) for row in rows] == [
        (name, form) for name in models.names() for form in models.forms(name)
    ]
    sizes = {row["name"]: row["parameters"] for row in rows if row["form"] == "imagenet"}
    assert sizes == published.PARAMETERS
    assert not any("multiply_adds" in row for row in rows)
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for row in rows:
        line = next(line for line in page.splitlines() if line.startswith(f"| `{row['name']}` | {row['form']} |"))
        assert f" {row['parameters']:,} | {row['covered_layers']} |" in line, "docs/models.md is not up to date"


@pytest.mark.usefixtures("_few")
def test_coverage_adds_shares() -> None:
    rows = {(row["name"], row["form"]): row for row in json.loads(call("--coverage", "--json"))}
    assert rows["cnn", "cifar"]["covered_parameters_share"] == 1
    resnet = rows["resnet50", "imagenet"]
    norms = 53_120  # weights and biases of the batch norms: 25,557,032 less the convolutions and the classifier
    assert resnet["covered_parameters_share"] == pytest.approx(1 - norms / 25_557_032)
    assert resnet["multiply_adds"] == pytest.approx(4.09e9, rel=0.001)
    assert resnet["covered_multiply_adds_share"] == 1
    transformer = rows["transformer", "multi30k"]
    attention = 3 * 3 * 2 * 16 * 16 * 512  # no layer does these: 9 attentions, twice 16 x 16 x 512
    uncovered = 1 - transformer["covered_multiply_adds_share"]
    assert uncovered * transformer["multiply_adds"] == pytest.approx(attention)


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("columns", [20, 80, 160])
def test_no_figure_is_cut_in_a_narrow_terminal(columns: int) -> None:
    (line,) = [line for line in call("--coverage", columns=columns).splitlines() if "224x224" in line]
    assert line.split() == ["resnet50", "imagenet", "3x224x224", "25,557,032", "54", "99.79", "4,089.2", "100.00"]


@pytest.mark.usefixtures("_few")
def test_notes_stay_within_a_narrow_terminal() -> None:
    lines = call(columns=30).splitlines()
    notes = lines[next(place for place, line in enumerate(lines) if "covered: layers" in line) :]
    assert len(notes) > 2
    assert max(map(len, notes)) <= 30


@pytest.mark.usefixtures("_few")
def test_table() -> None:
    shown = call()
    assert "resnet50" in shown
    assert "25,557,032" in shown
    assert "3x224x224" in shown
    assert "multiply-adds" not in shown
    covered = call("--coverage")
    line = next(line for line in covered.splitlines() if line.startswith("resnet50") and "imagenet" in line)
    assert line.split() == ["resnet50", "imagenet", "3x224x224", "25,557,032", "54", "99.79", "4,089.2", "100.00"]


@pytest.mark.slow
def test_coverage_of_everything_is_soon_told() -> None:
    began = time.process_time()
    rows = json.loads(call("--coverage", "--json"))
    assert time.process_time() - began < 60
    assert all(row["covered_multiply_adds_share"] == 1 for row in rows if row["name"] != "transformer")
