"""`economical`: measured batches, decisions by the table alone, and the engine that fills it."""

import copy
import io
import re

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, schedules
from adagp.schedules import Economical, Trial
from adagp.sources import Sampled
from tests.nets import batches, build, loss_of, sgd
from tests.sources.test_sources import gradients, plain

CHEAP = Trial(2.0, 1.0, {0.1: 0.2, 0.25: 0.4}, {0.1: 0.3, 0.25: 0.05}, 1.0)
NOISY = Trial(2.0, 1.0, {0.1: 0.2, 0.25: 0.4}, {0.1: 3.0, 0.25: 0.9}, 1.0)
SLOW = Trial(2.0, 1.0, {0.1: 1.1, 0.25: 1.2}, {0.1: 0.1, 0.25: 0.05}, 1.0)


def decided() -> Economical:
    schedule = schedules.economical(["a", "b", "c"], [0.1, 0.25], measured_batches=2, first=3, every=10)
    for step in (3, 4):
        schedule.observe_trials(step, {"a": CHEAP, "b": NOISY, "c": SLOW})
    return schedule


def test_a_run_is_exact_then_measured_then_sampled_where_it_pays() -> None:
    schedule = decided()
    assert schedule(2).overrides == {}
    assert [schedule(step).trial_rates for step in (2, 3, 4, 5, 12, 13, 14, 15)] == [
        (),
        (0.1, 0.25),
        (0.1, 0.25),
        (),
        (),
        (0.1, 0.25),
        (0.1, 0.25),
        (),
    ]
    assert schedule(4).overrides == dict.fromkeys("abc", "sampled")
    assert schedule(5).overrides == {"a": "sampled"}
    assert schedule(5).rates == schedule.rates == {"a": 0.25}


def test_every_decision_is_explained() -> None:
    first, second, third = decided().explain()
    assert first.startswith(
        "step 4: a sampled at 0.25: adds 0.05 of the variance between batches, below 0.25, and saves"
    )
    assert second.endswith("even a rate of 0.25 adds 0.90 of the variance between batches, and its time pays for 0.25")
    assert third == "step 4: c exact: sampling saves no time at any rate"


def test_a_new_measurement_replaces_the_old_one() -> None:
    schedule = decided()
    for step in (13, 14):
        schedule.observe_trials(step, {"a": NOISY, "b": CHEAP, "c": SLOW})
    assert schedule.rates == {"b": 0.25}
    assert all(len(found) == 2 for found in schedule.findings().values())


def test_a_batch_whose_gradients_overflowed_is_left_out() -> None:
    broken = Trial(2.0, 1.0, {0.1: 0.2, 0.25: 0.4}, {0.1: float("nan"), 0.25: float("inf")}, float("nan"))
    schedule = schedules.economical(["a"], [0.1, 0.25], measured_batches=3, first=3, every=10)
    for step, trial in ((3, broken), (4, CHEAP), (5, CHEAP)):
        schedule.observe_trials(step, {"a": trial})
    assert schedule.rates == {"a": 0.25}
    for step in (13, 14, 15):
        schedule.observe_trials(step, {"a": broken})
    assert schedule.rates == {"a": 0.25}, "nothing was learned"
    assert schedule.explain()[-1] == (
        "step 15: a stays sampled at 0.25: fewer than two measured batches in a row had finite gradients"
    )


def test_without_any_finite_batch_a_layer_stays_exact() -> None:
    schedule = schedules.economical(["a"], [0.1], measured_batches=2, first=3, every=10)
    for step in (3, 4):
        schedule.observe_trials(step, {"a": Trial(2.0, 1.0, {0.1: 0.2}, {0.1: float("inf")}, None)})
    assert schedule.rates == {}
    assert schedule.explain() == ["step 4: a exact: fewer than two measured batches in a row had finite gradients"]


def test_the_saved_table_gives_the_same_plans() -> None:
    schedule = decided()
    other = schedules.economical(["a", "b", "c"], [0.1, 0.25], measured_batches=2, first=3, every=10)
    assert other(5).overrides == {}
    other.load_state_dict(copy.deepcopy(schedule.state_dict()))
    assert [other(step) for step in range(20)] == [schedule(step) for step in range(20)]
    assert other.explain() == schedule.explain()
    assert other.findings() == schedule.findings()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": []}, "layers: there are none"),
        ({"rates": []}, "rates: needs at least one"),
        ({"rates": [0.5, 1]}, "rates: 1: it is a share, above 0 and below 1"),
        ({"measured_batches": 1}, "measured_batches: must be at least 2"),
        ({"first": -1}, "first: must be 0 or more"),
        ({"every": 4}, "every: must be above measured_batches"),
    ],
)
def test_arguments_are_refused_by_name(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        schedules.economical(**{"layers": ["a"], **arguments})  # type: ignore[arg-type]


# ---- with the engine

LAYERS = ["0", "3", "7", "9"]


def attached(model: nn.Module, **arguments: int) -> AdaGP:
    return AdaGP(model, sgd(model), schedules.economical(LAYERS, measured_batches=3, first=1, **arguments), None)


def run(gp: AdaGP, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        gp.step(lambda x=x, y=y: loss_of(model, x, y))  # type: ignore[misc]


def test_measured_batches_have_exact_gradients_and_fill_the_table() -> None:
    model = build()
    gp = attached(model)
    data = batches(4)
    run(gp, model, data[:1])
    for x, y in data[1:]:
        true = plain(model, lambda net, x=x, y=y: loss_of(net, x, y))  # type: ignore[misc]
        with gp.batch() as batch:
            batch.backward(loss_of(model, x, y))
        found = gradients(model)
        assert found.keys() == true.keys()
        assert all(torch.allclose(found[name], true[name], rtol=1e-4, atol=1e-6) for name in true)
        gp.optimizer.step()
        gp.optimizer.zero_grad()
    schedule = gp.schedule
    assert isinstance(schedule, Economical)
    assert schedule.findings().keys() == set(LAYERS)
    assert len(schedule.explain()) == 4
    for findings in schedule.findings().values():
        errors = [one.added_variance for one in findings]
        assert all(error > 0 for error in errors)
        assert errors[0] > errors[-1]  # a tenth of the positions is worse than a half


@pytest.mark.parametrize("cut", [2, 4, 6])
def test_a_resumed_run_is_the_one_that_was_not_interrupted(cut: int) -> None:
    """Seconds are not the same twice, so the first run's are given to the schedule as they were measured."""
    data = batches(9)
    first = build()
    gp = attached(first, every=50)
    run(gp, first, data[:cut])
    second = build(seed=1)
    second.load_state_dict(first.state_dict())
    resumed = attached(second, every=50)
    resumed.load_state_dict(torch_round_trip(gp.state_dict()))
    resumed.optimizer.load_state_dict(copy.deepcopy(gp.optimizer.state_dict()))
    for x, y in data[cut:]:
        for one, model in ((gp, first), (resumed, second)):
            one.step(lambda x=x, y=y, model=model: loss_of(model, x, y))  # type: ignore[misc]
        if gp.step_index == 4:  # decide alike
            assert errors(resumed.schedule) == errors(gp.schedule)
            resumed.schedule.load_state_dict(copy.deepcopy(gp.schedule.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def errors(schedule: schedules.Schedule) -> dict[str, list[tuple[object, float | None]]]:
    """The measured table without its seconds."""
    assert isinstance(schedule, Economical)
    return {layer: [(one.added, one.spread) for one in ones] for layer, ones in schedule._trials.items()}


def torch_round_trip(state: dict[str, object]) -> dict[str, object]:
    """What a checkpoint does to a state; `weights_only` must read it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, object] = torch.load(file, weights_only=True)
    return loaded


def test_micro_batches_and_autocast_are_measured_too() -> None:
    model = build()
    gp = attached(model)
    for x, y in batches(5):
        with gp.batch() as batch:
            for part in (slice(4), slice(4, 8)):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(model, x[part], y[part])
                batch.backward(loss)
        gp.optimizer.step()
        gp.optimizer.zero_grad()
    assert isinstance(gp.schedule, Economical)
    assert len(gp.schedule.explain()) == 4


def test_rows_drawn_in_the_forward_are_tried_as_such() -> None:
    """Positions whose inputs are small may have the large gradients: then rows drawn by the input miss them."""
    torch.manual_seed(0)
    x = torch.randn(16, 32, 12) * torch.rand(16, 32, 1)
    weights = (1 / (0.1 + x.norm(dim=-1, keepdim=True))) ** 3
    added = {}
    for keep in ("input", "rows"):
        model = nn.Sequential(nn.Linear(12, 12))
        schedule = schedules.economical(["0"], [0.25], measured_batches=3, first=0)
        gp = AdaGP(model, sgd(model), schedule, None, sources={"sampled": Sampled(keep=keep)})
        for _ in range(3):
            gp.step(lambda model=model: (model(x).square() * weights).mean())  # type: ignore[misc]
        added[keep] = [trial.added[0.25] for trial in schedule._trials["0"]]
    assert min(added["rows"]) > 2 * max(added["input"])
