"""Tables: what is written is what is read, mistakes are named with their line, and mixed plans train and resume."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp import AdaGP, Phase, schedules
from adagp.schedules.sources import names
from tests.nets import batches, build, equal_parameters, loss_of, sgd

FIGURE_3 = """
# Example approximation schedule for a 5-layer network over 4 batches.
layer  1         2         3         4

conv1  backprop  zero      random    zero
conv2  backprop  backprop  random    backprop   # a comment
conv3  topk      backprop  random    backprop
conv4  topk      backprop  backprop  backprop
conv5  topk      zero      backprop  zero
"""
CONVS = [f"conv{number}" for number in range(1, 6)]


def test_figure_3_reads_as_printed() -> None:
    schedule = schedules.from_table(FIGURE_3, CONVS)
    columns = [[schedule(step).source(layer) for layer in CONVS] for step in range(8)]
    assert columns[0] == ["backprop", "backprop", "topk", "topk", "topk"]
    assert columns[2] == ["random", "random", "random", "backprop", "backprop"]
    assert columns[1] == columns[3] == ["zero", "backprop", "backprop", "backprop", "zero"]
    assert columns[4:] == columns[:4]
    assert schedule.sources == {"backprop", "zero", "random", "topk"}
    assert all(schedule(step).phase is Phase.BP for step in range(4))


def test_the_first_matching_row_counts_and_the_rest_is_exact() -> None:
    schedule = schedules.from_table("layer 1\nstage1.conv2 topk\nstage?.* zero\n", ["stem", "stage1.conv2", "stage2.x"])
    assert schedule(0).overrides == {"stage1.conv2": "topk", "stage2.x": "zero"}
    assert schedule(0).source("stem") == "backprop"


NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="#"), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
    unique=True,
)


@given(NAMES, st.integers(1, 5), st.data())
def test_what_is_written_is_read_back(layers: list[str], count: int, data: st.DataObject) -> None:
    cells = st.sampled_from(sorted(names()))
    wanted = {layer: data.draw(st.lists(cells, min_size=count, max_size=count)) for layer in layers}
    schedule = schedules.from_function(
        lambda step: schedules.Plan(Phase.BP, "zero", {layer: row[step % count] for layer, row in wanted.items()})
    )
    text = schedules.to_table(schedule, layers, count)
    read = schedules.from_table(text, layers)
    for step in range(2 * count):
        assert {layer: read(step).source(layer) for layer in layers} == {
            layer: row[step % count] for layer, row in wanted.items()
        }
    assert schedules.to_table(read, layers, count) == text


def test_columns_are_aligned() -> None:
    schedule = schedules.approximation("2", ["stem", "a[0]"], "topk")
    assert schedules.to_table(schedule, ["stem", "a[0]"], 3).splitlines() == [
        "layer   1         2         3",
        "stem    backprop  backprop  backprop",
        "a[[]0]  backprop  topk      backprop",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"table: is empty.*'layer 1 2 3 4'"),
        ("# nothing\n\n", "table: is empty"),
        ("mine.txt", r"table: is a single line: give the table itself, for example Path\('mine.txt'\).read_text\(\)"),
        ("layer 1 2\n", "table: has a header and no rows"),
        ("a zero\n", r"line 1: the header is 'a zero'.*'layer 1 2 3'"),
        ("layer\na\n", "line 1: the header is 'layer'"),
        ("layer 1 3\na zero zero\n", "line 1: the header is 'layer 1 3'"),
        ("layer 1 2\n\na zero\n", r"line 3: row 'a' has 1 sources, the header 2 batches"),
        ("layer 1\na zero zero\n", r"line 2: row 'a' has 2 sources"),
        ("layer 1 2\na zero nil\n", r"line 2: row 'a', batch 2: 'nil' is no source; known: backprop, last.*zero"),
        ("layer 1\na zero\nc* zero\n", r"line 3: 'c\*' matches no layer; the layers are: a, b"),
        ("layer 1\n* zero\na mean\n", r"line 3: 'a' decides nothing.*move it up"),
    ],
)
def test_mistakes_are_named_with_line_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedules.from_table(text, ["a", "b"])


@pytest.mark.parametrize("name", ["", "a b", "a#"])
def test_a_name_that_no_table_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be written.*from_function"):
        schedules.to_table(schedules.always_backprop(), ["a", name], 1)


MIXED = """
layer  1          2         3       4         5     6
0      predicted  backprop  random  zero      skip  backprop
3      zero       backprop  topk    random    mean  topk
7      sampled    backprop  last    backprop  topk  predicted
9      topk       backprop  zero    mean      zero  backprop
"""


def attached(seed: int = 0) -> tuple[torch.nn.Module, AdaGP]:
    model = build(seed)
    return model, AdaGP(model, sgd(model), schedules.from_table(MIXED, schedules.layer_names(model)))


def test_a_plan_of_all_sources_trains() -> None:
    model, gp = attached()
    ((x, y),) = batches(1)
    losses = [float(gp.step(lambda: loss_of(model, x, y)) or 0) for _ in range(120)]
    assert sum(losses[-6:]) < 0.5 * sum(losses[:6])
    assert gp.counts().keys() >= names() - {"local"}  # it needs a target


@pytest.mark.parametrize("cut", [3, 8])
def test_a_mixed_table_resumes_bit_for_bit(cut: int) -> None:
    work = batches(16)
    whole, gp = attached()
    part, first = attached()
    for x, y in work:
        gp.step(lambda x=x, y=y: loss_of(whole, x, y))
    for x, y in work[:cut]:
        first.step(lambda x=x, y=y: loss_of(part, x, y))
    again, second = attached(seed=1)
    again.load_state_dict(part.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    for x, y in work[cut:]:
        second.step(lambda x=x, y=y: loss_of(again, x, y))
    assert equal_parameters(whole, again)
