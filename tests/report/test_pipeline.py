import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from itertools import pairwise

import pytest

from adagp import Phase
from adagp.accelerator.pipeline import SCHEMES, Pipeline, costs, simulate
from adagp.report.pipeline import (
    STEP_MICROSECONDS,
    chrome_trace,
    letter,
    number,
    pipeline_grid,
    pipeline_page,
    pipeline_svg,
)
from adagp.report.table import Table

BP, GP = Phase.BP, Phase.GP
SVG = "{http://www.w3.org/2000/svg}"


def timeline_of(scheme="gpipe", phases=(GP, BP), devices=4, microbatches=4, **prices):
    return simulate(Pipeline(scheme, devices, microbatches, phases), costs(devices, **prices))


def cells(timeline):
    grid = pipeline_grid(timeline)
    return grid.column, [
        " ".join(f"{letter(timeline, slot)}{number(timeline, slot)}" if slot else "." for slot in row)
        for row in grid.rows
    ]


def test_grid_is_the_one_drawn_by_hand():
    assert cells(timeline_of(devices=2, microbatches=2)) == (
        1,
        ["G0 G1 F2 F3 . . . B2 B2 B3 B3", ". G0 G1 F2 F3 B2 B2 B3 B3 . ."],
    )


def test_columns_are_the_coarsest_that_show_every_start():
    assert cells(timeline_of(phases=(BP,), devices=1, microbatches=1, backward=0.5)) == (0.5, ["F0 F0 B0"])
    assert cells(timeline_of(phases=(BP,), devices=1, microbatches=1, forward=20, backward=30)) == (
        10,
        ["F0 F0 B0 B0 B0"],
    )
    thirds = timeline_of(phases=(GP, GP), devices=1, microbatches=3, predictor=0.1)
    assert cells(thirds) == (1.1, ["G0 G1 G2 G3 G4 G5"])  # though 1.1 + 1.1 + 1.1 is not 3.3 in binary
    assert pipeline_grid(timeline_of(backward=2.01)) is None


PASSES_OF_BP = {scheme: 12 if scheme == "zero-bubble" else 8 for scheme in SCHEMES}
"""Of four micro-batches on a device, in BP: a zero-bubble pipeline has backwards in two parts."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_svg_has_a_rectangle_with_a_tooltip_for_every_slot(scheme):
    timeline = timeline_of(scheme)
    root = ElementTree.fromstring(pipeline_svg([("title & more", timeline), ("below", timeline_of(scheme, (BP,)))]))
    width, height = float(root.get("width")), float(root.get("height"))
    slots = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert len(slots) == 4 * (4 + PASSES_OF_BP[scheme]) + 4 * PASSES_OF_BP[scheme]
    tips = [group.find(f"{SVG}title").text for group in slots]
    assert "forward and update, GP: micro-batch 0 (batch 0), stage 0, device 0, 0 to 1" in tips
    for rectangle in root.iter(f"{SVG}rect"):
        if rectangle.get("x"):
            assert 0 <= float(rectangle.get("x")) <= float(rectangle.get("x")) + float(rectangle.get("width")) <= width
            assert float(rectangle.get("y")) + float(rectangle.get("height")) <= height
    texts = [text.text for text in root.iter(f"{SVG}text")]
    backward = "backward, local loss" if scheme == "local" else "backward, BP"
    assert {"title & more", "below", "device 3", "forward, BP", backward, "forward and update, GP"} <= set(texts)


def test_page_holds_everything_itself():
    timeline = timeline_of()
    page = pipeline_page("a title", Table("figures", ("figure", "value"), [("steps", "25")]), [("panel", timeline)])
    assert page.count("<title>") == 1 + len(timeline.slots)
    assert "<svg" in page
    assert "<td>25</td>" in page
    assert "src=" not in page
    assert "href" not in page


@pytest.mark.parametrize("scheme", SCHEMES)
def test_trace_has_the_structure_that_viewers_want(scheme):
    timeline = timeline_of(scheme, predictor=0.5)
    trace = json.loads(json.dumps(chrome_trace(timeline), allow_nan=False))
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {device: f"device {device}" for device in range(4)}
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["ph"] for event in trace["traceEvents"]} == {"X", "M"}
    assert Counter(event["tid"] for event in events) == dict.fromkeys(range(4), 4 + PASSES_OF_BP[scheme])
    for event in events:
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["ts"] >= 0
        assert event["dur"] > 0
    for device in range(4):
        mine = sorted((event["ts"], event["dur"]) for event in events if event["tid"] == device)
        assert all(start + long <= later for (start, long), (later, _) in pairwise(mine))
    assert max(event["ts"] + event["dur"] for event in events) == timeline.steps * STEP_MICROSECONDS
    first = next(event for event in events if event["ts"] == 0 and event["tid"] == 0)
    assert first["name"] == "G0"
    assert first["args"] == {"phase": "GP", "batch": 0, "micro_batch": 0, "stage": 0}
