"""The table of sources and `resolve`: what a plan asks of every layer, and a source of a user's own everywhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adagp import AdaGP, Phase, Plan, schedules, sources
from adagp.accelerator import LayerOp, LayerShape, Pass, batch_tasks
from adagp.cost import CostModel
from adagp.layers import Layer
from adagp.layers.rows import Rows
from adagp.predictors import Features
from adagp.report import grid_picture, schedule_grid
from adagp.schedules import SourceSpec, resolve
from adagp.schedules import sources as table
from adagp.sources import Last
from tests.nets import batches, build, loss_of, sgd


def test_every_source_of_the_table_can_be_built_and_carries_its_entry() -> None:
    built = sources.build(table.names() - {"predicted"}, None, {})
    assert {name: source.spec for name, source in built.items()} == {
        name: spec for name, spec in table.specs().items() if name != "predicted"
    }


@pytest.mark.parametrize("layer", ["b", "nothing"])
def test_rates_of_layers_that_are_not_sampled_are_refused(layer: str) -> None:
    plan = Plan(Phase.BP, "backprop", {"a": "sampled"}, rates={"a": 0.5, layer: 0.5})
    with pytest.raises(ValueError, match=rf"rates of \['{layer}'\], whose source is not sampled"):
        resolve(plan, ["a", "b"])


def test_the_docs_say_of_every_source_what_the_table_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert rows == {name: spec.about for name, spec in table.specs().items()}


def test_a_task_says_what_a_layer_does() -> None:
    plan = Plan(Phase.BP, "backprop", {"b": "predicted", "c": "topk"})
    resolved = resolve(plan, ["a", "b", "c"])
    assert [task.source.name for task in resolved.tasks.values()] == ["backprop", "predicted", "topk"]
    assert [task.trains_predictor for task in resolved.tasks.values()] == [True, False, False]
    assert resolved.needs_backward
    assert resolve(Plan(Phase.GP, "predicted"), ["a"]).needs_forward
    assert not resolve(Plan(Phase.GP, "mean"), ["a"]).needs_forward
    assert not resolve(Plan(Phase.GP, "zero"), ["a"]).needs_backward


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(Phase.GP, "topk"), "a GP plan has no backward, but layer 'a' asks for it"),
        (Plan(Phase.BP, "mien"), r"the plan of step 7 asks for \['mien'\], which the schedule did not announce"),
        (Plan(Phase.BP, "backprop", {"z": "zero"}), r"names \['z'\], which the model has not; its layers are: a, b"),
        (Plan(Phase.BP, "backprop", {"norm": "zero"}), "gives 'norm' 'zero', but it is not covered"),
    ],
)
def test_an_impossible_plan_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(plan, ["a", "b"], uncovered=["norm"], step=7)


def test_a_plan_that_predicts_needs_a_predictor() -> None:
    with pytest.raises(ValueError, match="asks for 'predicted' but predictor=None"):
        resolve(Plan(Phase.GP, "predicted"), ["a"], has_predictor=False)


def test_a_plan_may_name_a_layer_that_takes_no_part_now() -> None:
    plan = Plan(Phase.BP, "backprop", {"b": "zero"})
    assert resolve(plan, ["a"], uncovered=[], resting=["b"]).tasks.keys() == {"a"}


# ---- a source of a user's own: one entry and one class


SIGN = SourceSpec(
    "sign",
    "the signs of the last true gradient",
    letter="G",
    colour="#0072B2",
    remembers=True,
    on_array=True,
    macs=lambda op: op.parameters,
)


@pytest.fixture
def sign() -> Iterator[None]:
    @sources.register(SIGN)
    class Sign(Last):
        """The signs of the last true gradient."""

        def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
            rows = super().gradient(layer, features, samples)
            return None if rows is None else Rows(rows.weight.sign(), None if rows.bias is None else rows.bias.sign())

    yield
    sources.unregister("sign")


@pytest.mark.usefixtures("sign")
def test_a_registered_source_trains_and_resumes() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="sign"), None)
    data = batches(2)
    gp.step(lambda: loss_of(model, *data[0]))  # nothing is remembered yet
    with gp.batch() as batch:
        batch.backward(loss_of(model, *data[0]))
    signs = model[7].weight.grad.sign()
    gp.optimizer.step()
    gp.optimizer.zero_grad()
    fresh = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="sign"), None)
    fresh.load_state_dict(gp.state_dict())
    with fresh.batch() as batch:
        batch.backward(loss_of(model, *data[1]))
    assert torch.equal(model[7].weight.grad, signs)
    assert fresh.counts() == {"skip": 4, "backprop": 4, "sign": 4}


@pytest.mark.usefixtures("sign")
def test_a_registered_source_is_known_to_every_reader_of_the_table() -> None:
    names = ["0", "3"]
    text = "layer 1 2\n0 sign backprop\n3 backprop sign\n"
    schedule = schedules.from_table(text, names)
    grid = schedule_grid(schedule, names, range(2))
    assert grid.shares() == {"backprop": 0.5, "sign": 0.5}
    assert grid_picture(grid, "signs", "svg")
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    costs = CostModel(model, (8, 4)).layers(Plan(Phase.GP, "sign"))
    assert sum(cost.total for cost in costs.values()) == 0  # it needs no forward
    mixed = CostModel(model, (8, 4)).layers(Plan(Phase.BP, "backprop", {"0": "sign"}))
    assert mixed["0"].weight_gradient == 4 * 3 + 3
    op: Any = LayerOp("0", "linear", LayerShape(4, 3, batch=8), tuple(Pass), covered=True)
    (task,) = batch_tasks([op], Plan(Phase.GP, "sign"), learning=False)
    assert task.update
    assert not task.predict


def test_a_gradient_of_a_users_source_that_is_not_finite_makes_the_batch_fall_back() -> None:
    @sources.register(SourceSpec("void", "not a number", letter="V", colour="#123456"))
    class Void(sources.Source):
        """Not a number."""

        def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
            return Rows(torch.full((layer.out, layer.fan_in), float("nan")), None)

    try:
        model = build()
        gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="void"), None)
        gp.step(lambda: loss_of(model, *batches(1)[0]))
        assert gp.counts() == {"fallback": 1, "backprop": 4}
        assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    finally:
        sources.unregister("void")


@pytest.mark.parametrize("name", ["zero", "unheard-of"])
def test_only_what_was_registered_is_forgotten(name: str) -> None:
    with pytest.raises(ValueError, match=f"source '{name}' was not registered"):
        sources.unregister(name)


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="source 'zero' exists already"):
        sources.register(SourceSpec("zero", "", "0", "#000000"))(Last)
    with pytest.raises(ValueError, match="letter 'Z' is taken by 'zero'"):
        sources.register(SourceSpec("zebra", "", "Z", "#000000"))(Last)
    with pytest.raises(ValueError, match="letter 'ab' is not one character"):
        sources.register(SourceSpec("zebra", "", "ab", "#000000"))(Last)
    with pytest.raises(ValueError, match="only backprop's gradient is written by autograd"):
        sources.register(SourceSpec("zebra", "", "z", "#000000", needs_graph=True))
    assert "zebra" not in table.names()
