"""Figures 7 to 9, and how often the devices of a pipeline wait for each other."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from adagp import Phase
from adagp.accelerator.pipeline import Pipeline
from adagp.cli import app
from adagp.reproduce.timelines import chip_timelines, synchronisations


@given(st.floats(0, 1))
def test_steps_are_the_papers_for_every_predictor(alpha: float) -> None:
    for each in chip_timelines(alpha):
        assert each.timeline.steps == pytest.approx(each.paper_steps)


@given(
    st.sampled_from(["gpipe", "dapple"]),
    st.integers(2, 5),
    st.integers(1, 6),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_messages_by_hand(scheme: str, devices: int, microbatches: int, exact: list[bool]) -> None:
    """Every micro-batch crosses every cut once in a GP batch, and twice in a BP batch."""
    phases = tuple(Phase.BP if each else Phase.GP for each in exact)
    found = synchronisations(Pipeline(scheme, devices, microbatches, phases))
    assert found.messages == (devices - 1) * microbatches * (len(exact) + sum(exact))
    assert found.drains == sum(exact)


def test_the_command(tmp_path: Path) -> None:
    svg = tmp_path / "f.svg"
    found = CliRunner().invoke(app, ["reproduce", "fig7-9", "--json", "--predictor", "0.25", "--svg", str(svg)])
    assert found.exit_code == 0, found.output
    values = json.loads(found.stdout)
    assert [each["steps"] for each in values["timelines"]] == [12, 15, 5]
    turns = [each for each in values["synchronisations"] if each["phases"] == ["GP", "BP"]]
    assert [(each["messages"], each["drains"]) for each in turns] == [(36, 1)] * 3
    assert svg.read_text().startswith("<svg")
