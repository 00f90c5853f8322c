"""The invariants of the design, each with an oracle: the plain loop, or plain backpropagation."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.optim import Optimizer

from adagp import AdaGP, NonFiniteError, Phase, Plan, schedules
from adagp.layers import Layer
from adagp.layers.rows import Rows
from adagp.predictors import Features, PaperPredictor
from tests.nets import Functional, batches, build, equal_parameters, look, loss_of, sgd, small_cnn

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
COVERED = ["0", "3", "7", "9"]
NAN = float("nan")


def run(gp: AdaGP, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> list[Tensor | None]:
    return [gp.step(lambda x=x, y=y: loss_of(model, x, y)) for x, y in data]


# ---- 1: all-BP is the plain loop, bit for bit


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("predictor", [None, "trusted", "with-network", "paper"])
def test_all_backprop_is_bit_identical_to_the_plain_loop(name: str, predictor: str | None, device: str) -> None:
    plain, ours = build().to(device), build().to(device)
    optimizer = OPTIMIZERS[name](plain.parameters())
    data = [(x.to(device), y.to(device)) for x, y in batches(6)]
    for x, y in data:
        optimizer.zero_grad()
        loss_of(plain, x, y).backward()
        optimizer.step()
    torch.manual_seed(1)
    expected_next = torch.rand(1)
    torch.manual_seed(1)
    gp = AdaGP(ours, OPTIMIZERS[name](ours.parameters()), schedules.always_backprop(), predictor)
    run(gp, ours, data)
    assert equal_parameters(plain, ours)
    assert torch.equal(torch.rand(1), expected_next), "the global random generator was touched"


def test_the_batch_form_is_bit_identical_to_the_plain_loop_too() -> None:
    plain, ours = build(), build()
    one, two = sgd(plain), sgd(ours)
    gp = AdaGP(ours, two, schedules.always_backprop())
    for x, y in batches(5):
        one.zero_grad()
        loss_of(plain, x, y).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        one.step()
        with gp.batch() as batch:
            batch.backward(loss_of(ours, x, y))
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.5)
        two.step()
        two.zero_grad()
    assert equal_parameters(plain, ours)


# ---- 2: GP builds no graph and runs no backward


def test_gp_builds_no_graph_and_never_runs_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1, rungs=((1, 0),)), "paper")
    data = batches(4)
    run(gp, model, data[:2])
    before = copy.deepcopy(model.state_dict())
    monkeypatch.setattr(torch.autograd, "backward", _never)
    monkeypatch.setattr(Tensor, "backward", _never)
    losses: list[Tensor] = []

    def closure() -> Tensor:
        losses.append(loss_of(model, *data[2]))
        return losses[-1]

    gp.step(closure)
    assert losses[0].grad_fn is None
    assert not losses[0].requires_grad
    after = model.state_dict()
    assert not torch.equal(before["0.weight"], after["0.weight"])
    assert torch.equal(before["1.weight"], after["1.weight"]), "batch norm is not covered and must rest in GP"


def _never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("backward ran in GP")


def test_a_graph_built_in_gp_because_grad_mode_is_on_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    for x, y in batches(4):
        with gp.batch() as batch, torch.enable_grad():
            batch.backward(loss_of(model, x, y))
        gp.optimizer.step()
        gp.optimizer.zero_grad()
    assert caplog.text.count("step 0 is a GP batch, but grad mode is on where layer '0' runs") == 1
    assert caplog.text.count("grad mode is on") == 1


# ---- 3: a source on one layer leaves the others' gradients exact


@pytest.mark.parametrize("layer", COVERED)
@pytest.mark.parametrize("source", ["predicted", "zero", "random", "topk", "sampled", "skip", "last", "mean"])
def test_another_source_on_one_layer_leaves_the_others_exact(layer: str, source: str) -> None:
    model = build()
    optimizer = sgd(model)

    def schedule(step: int) -> Plan:
        return Plan(Phase.BP, "backprop", {} if step < 3 else {layer: source})

    gp = AdaGP(model, optimizer, schedule, "paper")
    *warm, (x, y) = batches(4)
    run(gp, model, warm)
    oracle = copy.deepcopy(model)
    loss_of(oracle, x, y).backward()
    with gp.batch() as batch:
        batch.backward(loss_of(model, x, y))
    for name, parameter in model.named_parameters():
        true = dict(oracle.named_parameters())[name].grad
        assert parameter.requires_grad
        if not name.startswith(f"{layer}."):
            assert parameter.grad is not None
            assert true is not None
            assert torch.equal(parameter.grad, true), name
        elif source == "skip":
            assert parameter.grad is None
        elif source == "zero":
            assert parameter.grad is not None
            assert parameter.grad.abs().max() == 0
        elif source == "topk" and layer in ("7", "9"):
            assert parameter.grad is not None  # a Linear with one position has nothing to leave out
            assert true is not None
            assert torch.allclose(parameter.grad, true, atol=1e-6)
        elif name.endswith("weight"):
            assert parameter.grad is not None
            assert true is not None
            assert not torch.equal(parameter.grad, true)
    assert gp.counts()[source] == 1


def test_a_predicted_prefix_costs_no_graph() -> None:
    model = build()
    prefix = {"0": "predicted", "1": "skip", "3": "predicted"}
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.BP, "backprop", prefix if step else {}), "paper")
    data = batches(2)
    run(gp, model, data[:1])
    with gp.batch() as batch:
        hidden = model[:7](data[1][0])
        assert hidden.grad_fn is None
        batch.backward(nn.functional.cross_entropy(model[7:](hidden), data[1][1]))
    assert model[0].weight.grad is not None
    assert model[1].weight.grad is None


def test_zero_in_the_middle_skips_only_its_weight_gradient() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.BP, "backprop", {"3": "zero"}), None)
    (x, y), *_ = batches(1)
    wanted: list[list[bool]] = []
    with gp.batch() as batch:
        batch.backward(loss_of(model, x, y))
        wanted.append([p.requires_grad for p in model[3].parameters()])
    assert wanted == [[False]]
    assert model[0].weight.grad is not None
    assert float(model[0].weight.grad.abs().sum()) > 0


# ---- the meaning of each source


@pytest.mark.parametrize("source", ["last", "mean"])
def test_remembered_gradients_are_what_they_say(source: str) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(3, 1, 1, rungs=((1, 0),), source=source), None)
    true: list[Tensor] = []
    data = batches(4)
    for x, y in data[:3]:
        with gp.batch() as batch:
            batch.backward(loss_of(model, x, y))
        assert model[7].weight.grad is not None
        true.append(model[7].weight.grad.clone())
        gp.optimizer.step()
        gp.optimizer.zero_grad()
    with gp.batch() as batch:
        batch.backward(loss_of(model, *data[3]))
    expected = true[-1] if source == "last" else torch.stack(true).mean(0)
    assert model[7].weight.grad is not None
    assert torch.allclose(model[7].weight.grad, expected, atol=1e-7)


def test_skip_leaves_the_weight_alone_and_zero_lets_momentum_move_it() -> None:
    moved = {}
    for source in ("skip", "zero"):
        model = build()
        gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1, rungs=((1, 0),), source=source), None)
        data = batches(3)
        run(gp, model, data[:2])
        before = model[0].weight.detach().clone()
        run(gp, model, data[2:])
        moved[source] = float((model[0].weight.detach() - before).abs().max())
    assert moved["skip"] == 0
    assert moved["zero"] > 0


def test_a_source_with_nothing_to_give_yet_counts_as_skip() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="last"), None)
    run(gp, model, batches(3))
    assert gp.counts() == {"skip": 4, "backprop": 4, "last": 4}


@pytest.mark.parametrize("source", ["last", "mean", "zero", "skip"])
def test_a_plan_that_needs_no_output_leaves_the_forward_out_on_request(source: str) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source=source), None, skip_forward=True)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        return loss_of(model, *batches(1)[0])

    losses = [gp.step(closure) for _ in range(6)]
    assert calls == 3
    assert [loss is None for loss in losses] == [True, False] * 3


def test_a_predicted_plan_never_leaves_the_forward_out() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), skip_forward=True)
    assert None not in run(gp, model, batches(4))


# ---- 5: resume is bit-identical


@pytest.mark.parametrize("cut", [1, 3, 5, 8, 12])
@pytest.mark.parametrize("kind", ["ladder", "adaptive", "mean", "last", "random"])
def test_resume_is_bit_identical_at_any_step(cut: int, kind: str) -> None:
    def start() -> tuple[nn.Module, AdaGP]:
        model = build()
        schedule = (
            schedules.adaptive(3, 1, patience=1)
            if kind == "adaptive"
            else schedules.ladder(3, 1, 1, source="predicted" if kind == "ladder" else kind)
        )
        return model, AdaGP(model, torch.optim.Adam(model.parameters(), lr=0.01), schedule)

    data = batches(15)
    whole, gp = start()
    run(gp, whole, data)
    part, first = start()
    run(first, part, data[:cut])
    file = io.BytesIO()
    torch.save({"model": part.state_dict(), "opt": first.optimizer.state_dict(), "gp": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, second = start()
    resumed.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["opt"])
    second.load_state_dict(saved["gp"])
    run(second, resumed, data[cut:])
    assert equal_parameters(whole, resumed)
    assert gp.counts() == second.counts()
    assert gp.quality() == second.quality()


def test_quality_has_the_order_of_the_model_whatever_it_learns_from_first() -> None:
    first = set()
    for seed in range(3):
        model = build()
        predictor = PaperPredictor(layers_per_step=1, seed=seed)
        gp = AdaGP(model, sgd(model), schedules.always_backprop(), predictor)
        first |= set(predictor.layers_to_train_on())
        run(gp, model, batches(4))
        assert list(gp.quality()) == COVERED
    assert len(first) > 1


@pytest.mark.parametrize("predictor", ["paper", "trusted", "with-network"])
def test_double_precision_by_default_is_no_obstacle(predictor: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), predictor)
        for _ in range(6):
            gp.step(lambda: model(torch.ones(2, 4)).square().mean())
    finally:
        torch.set_default_dtype(torch.float32)
    assert model[0].weight.dtype == torch.float64
    assert gp.counts()["backprop"] == 6
    assert gp.counts().get("predicted", 0) + gp.counts().get("skip", 0) == 6


def test_a_weight_without_entries_is_left_out() -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(0, 3))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper")
    for _ in range(2):
        gp.step(lambda: (model[0](torch.ones(2, 4)) + model[1](torch.ones(2, 0))).square().mean())
    assert "its weight has no entries" in str(gp.coverage())
    assert gp.quality().keys() == {"0"}


def test_the_state_of_another_model_is_refused_by_name() -> None:
    model, other = build(), nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    with pytest.raises(ValueError, match=r"another model: \d+ layers differ, the first is '2'"):
        gp.load_state_dict(AdaGP(other, sgd(other), schedules.fixed(1, 1)).state_dict())
    last = build().to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match=r"'ChannelsLastConvolution'.*here .*'Convolution'.*in the same memory format"):
        gp.load_state_dict(AdaGP(last, sgd(last), schedules.fixed(1, 1)).state_dict())
    with pytest.raises(ValueError, match="no AdaGP state"):
        gp.load_state_dict({"weights": 1})
    with pytest.raises(ValueError, match="has format 1, this version reads 7"):
        gp.load_state_dict(gp.state_dict() | {"format": 1})
    for other_gp, part in (
        (
            AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper"),
            r"predictor \(PaperPredictor, here TrustedPredictor",
        ),
        (AdaGP(model, sgd(model), schedules.adaptive(1)), r"schedule \(Adaptive, here Ladder"),
        (
            AdaGP(model, sgd(model), schedules.fixed(1, 1, source="mean")),
            r"sources \(backprop, mean, here backprop, pre",
        ),
    ):
        run(other_gp, model, batches(2))
        with pytest.raises(ValueError, match=f"saved with another {part}"):
            gp.load_state_dict(other_gp.state_dict())
        assert gp.step_index == 0
    small = AdaGP(model, sgd(model), schedules.fixed(1, 1), PaperPredictor(grid=2))
    with pytest.raises(ValueError, match=r"has grid=4, this one grid=2: build it with the same options"):
        small.load_state_dict(AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper").state_dict())
    assert small.step_index == 0


def test_a_state_is_a_snapshot() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), "with-network")
    run(gp, model, batches(2))
    state = gp.state_dict()
    before = copy.deepcopy(state)
    run(gp, model, batches(2))
    kept, now = before["predictor"]["means"], state["predictor"]["means"]
    assert all(torch.equal(a, b) for name in kept for a, b in zip(kept[name]["rows"], now[name]["rows"], strict=True))
    assert torch.equal(before["predictor"]["network"]["values"], state["predictor"]["network"]["values"])


# ---- 7: an untrained predictor changes nothing


@pytest.mark.parametrize("predictor", ["trusted", "with-network", "paper"])
def test_an_untrained_predictor_changes_nothing(predictor: str) -> None:
    model = build()
    before = [p.detach().clone() for p in model.parameters()]
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=1.0), schedules.fixed(1, 0), predictor)
    run(gp, model, batches(3))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_literal_recipe_does_change_the_weights_untrained() -> None:
    model = build()
    before = model[0].weight.detach().clone()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0), "literal")
    run(gp, model, batches(1))
    assert not torch.equal(before, model[0].weight)


def test_after_one_example_predictions_are_still_next_to_nothing() -> None:
    """The output layer starts at zero, so the first steps of Adam at 1e-4 cannot make a prediction of any size."""
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), "paper")
    run(gp, model, batches(3))
    assert all(features.norm_ratio < 0.01 for features in gp.quality().values())


# ---- 8: models as they are


class Reused(nn.Module):
    """A layer called twice in one forward, and one never called."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(5, 5)
        self.never = nn.Linear(5, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.twice(torch.relu(self.twice(x)))))


def test_reused_and_unreached_layers_are_handled() -> None:
    model = Reused()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    before = model.never.weight.detach().clone()
    x = torch.randn(8, 5)
    for _ in range(8):
        gp.step(lambda: model(x).square().mean())
    assert torch.equal(before, model.never.weight)
    assert gp.counts()["backprop"] == 8
    assert gp.quality().keys() == {"twice", "head"}
    assert all(row.covered for row in gp.coverage().rows), "a layer not reached may be reached later"


def test_the_second_use_of_a_weight_is_seen_as_well() -> None:
    model = Reused()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), "paper")
    predictor = gp.predictor
    assert predictor is not None
    layer = gp._setup.by_name["twice"]
    x = torch.randn(8, 5)
    one = model.twice(x)
    two = model.twice(torch.relu(one))
    with gp.batch() as batch:
        batch.backward(model(x).mean())
    parts = [look(predictor, layer, one), look(predictor, layer, two)]
    entry = batch._layers["twice"]
    assert len(entry.outputs) == 2
    features = entry.features()
    assert features is not None
    assert torch.allclose(features.output, torch.stack([part.output for part in parts]).mean(0))


class Tied(nn.Module):
    """Input table and output layer share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(4, 6, bias=False)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x)[:, :4])


def test_tied_weights_get_one_gradient_and_immediate_is_refused() -> None:
    model = Tied()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    x = torch.randn(8, 4)
    for _ in range(6):
        gp.step(lambda: model(x).square().mean())
    assert gp.counts()["backprop"] == 3
    with pytest.raises(ValueError, match="immediate=True: a parameter of layer 'table' belongs to another module too"):
        AdaGP(model, sgd(model), schedules.fixed(1, 1), immediate=True)


def test_a_weight_used_functionally_is_dropped_from_coverage_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    model = Functional()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1))
    x = torch.randn(8, 4)
    for _ in range(5):
        gp.step(lambda: model(x).square().mean())
    why = {row.layer: row.reason for row in gp.coverage().rows}
    assert "never seen" in why["hidden"]
    assert "layer 'hidden' is not covered" in caplog.text
    assert gp.counts()["backprop"] == 2
    state = gp.state_dict()
    fresh = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1))
    fresh.load_state_dict(state)
    assert fresh.state_dict()["layers"] == state["layers"]


def test_frozen_parameters_stay_frozen() -> None:
    model = build()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    run(gp, model, batches(6))
    assert torch.equal(before, model[0].weight)
    assert not model[0].weight.requires_grad
    assert gp.counts()["backprop"] == 9


def test_in_place_activations_do_not_reach_what_is_seen() -> None:
    features = []
    for inplace in (True, False):
        torch.manual_seed(0)
        model = small_cnn(inplace)
        gp = AdaGP(model, sgd(model), schedules.always_backprop(), "paper")
        with gp.batch() as batch:
            batch.backward(loss_of(model, *batches(1)[0]))
        features.append(torch.cat([entry.outputs[0].flatten() for entry in batch._layers.values()]))
    assert torch.equal(features[0], features[1])


def test_channels_last_gives_the_same_training() -> None:
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model = build().to(memory_format=memory_format)
        gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1))
        run(gp, model, [(x.to(memory_format=memory_format), y) for x, y in batches(9)])
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(results[0], results[1], atol=1e-5)


def test_eval_forwards_between_batches_and_copies_of_the_model_are_not_seen() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper")
    average = copy.deepcopy(model)
    loaded = pickle.loads(pickle.dumps(model))  # noqa: S301
    data = batches(2)
    with gp.batch() as batch:
        average(data[0][0])
        loaded(data[0][0])
        batch.backward(loss_of(model, *data[0]))
    assert {len(entry.outputs) for entry in batch._layers.values() if entry.uses_features} == {1}
    model.eval()
    model(data[0][0])


def test_remove_leaves_no_trace() -> None:
    model = build()
    keys, hooks = list(model.state_dict()), [len(m._forward_hooks) for m in model.modules()]
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    assert type(model) is nn.Sequential
    assert list(model.state_dict()) == keys
    run(gp, model, batches(3))
    gp.remove()
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(RuntimeError, match="removed"):
        gp.step(lambda: loss_of(model, *batches(1)[0]))


# ---- 9: what no source covers rests in GP


def test_uncovered_parameters_get_none_in_gp_and_coverage_says_so() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(1, 1, 1, rungs=((1, 0),)), "paper")
    data = batches(2)
    run(gp, model, data[:1])
    with gp.batch() as batch:
        batch.backward(loss_of(model, *data[1]))
    assert model[1].weight.grad is None
    assert model[1].bias.grad is None
    assert model[0].weight.grad is not None
    row = {row.layer: row for row in gp.coverage().rows}["1"]
    assert not row.covered
    assert "None in GP" in row.reason


# ---- immediate updates


def test_immediate_updates_equal_deferred_ones_where_no_layer_reads_another() -> None:
    """With one layer nothing downstream can tell the difference; with plain SGD the update is the same number."""
    weights = []
    for immediate in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 3))
        gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1), immediate=immediate)
        generator = torch.Generator().manual_seed(0)
        for _ in range(12):
            x = torch.randn(4, 6, generator=generator)
            gp.step(lambda x=x, model=model: model(x).square().mean())
        weights.append(model[0].weight.detach().clone())
        assert gp.counts()["predicted"] > 0
    assert torch.allclose(weights[0], weights[1], atol=1e-7)


def test_immediate_keeps_the_rows_of_one_layer_alive_at_a_time() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1, rungs=((1, 0),)), "paper", immediate=True)
    data = batches(3)
    run(gp, model, data[:2])
    alive: list[int] = []
    for index in (3, 7, 9):
        model[index].register_forward_pre_hook(
            lambda module, args: alive.append(sum(p.grad is not None for p in model.parameters()))
        )
    before = [model[int(name)].weight.detach().clone() for name in COVERED]
    run(gp, model, data[2:])
    assert alive == [0, 0, 0]
    changed = [not torch.equal(b, model[int(name)].weight) for b, name in zip(before, COVERED, strict=True)]
    assert all(changed)


def test_immediate_refuses_a_layer_used_twice_on_the_first_batch() -> None:
    model = Reused()
    gp = AdaGP(model, sgd(model), schedules.ladder(5), immediate=True)
    with pytest.raises(RuntimeError, match="immediate=True: layer 'twice' ran twice"):
        gp.step(lambda: model(torch.randn(2, 5)).mean())


def test_immediate_lets_micro_batches_accumulate_in_bp() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), immediate=True)
    (x, y), *_ = batches(1)
    with gp.batch() as batch:
        for part in (slice(4), slice(4, 8)):
            batch.backward(loss_of(model, x[part], y[part]))
    assert gp.counts() == {"backprop": 4}


# ---- non-finite numbers


class Broken(PaperPredictor):
    """Predicts NaN for one layer."""

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        for (layer, _), rows in zip(requests, super().predict(requests), strict=True):
            assert rows is not None
            yield Rows(rows.weight * float("nan"), rows.bias) if layer.name == "7" else rows


def test_a_prediction_that_is_not_finite_makes_the_batch_fall_back_to_backprop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, plain = build(), build()
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.fixed(1, 0), Broken())
    one = torch.optim.SGD(plain.parameters(), lr=0.1)
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y))
    loss_of(plain, x, y).backward()
    one.step()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert gp.counts()["fallback"] == 1
    assert gp.counts()["backprop"] == 4
    assert "predicted" not in gp.counts()
    assert gp.step_index == 1
    assert "layer '7' is not finite" in caplog.text


def test_immediate_updates_stop_at_a_prediction_that_is_not_finite() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1, rungs=((1, 0),)), Broken(), immediate=True)
    run(gp, model, batches(2))
    before = copy.deepcopy(model.state_dict())
    with gp.batch() as batch:
        batch.backward(loss_of(model, *batches(1)[0]))
    assert batch.failed
    after = model.state_dict()
    assert not torch.equal(before["0.weight"], after["0.weight"])
    assert torch.equal(before["7.weight"], after["7.weight"])
    assert torch.equal(before["9.weight"], after["9.weight"])


def test_in_the_batch_form_a_failed_prediction_is_not_applied_and_the_next_batch_is_backprop() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0), Broken())
    with gp.batch() as batch:
        batch.backward(loss_of(model, *batches(1)[0]))
    assert batch.failed
    assert all(p.grad is None for p in model.parameters())
    assert gp.next_plan().phase is Phase.BP
    with gp.batch() as batch:
        batch.backward(loss_of(model, *batches(1)[0]))
    assert gp.next_plan().phase is Phase.GP


def test_a_loss_that_is_not_finite_in_gp_is_computed_again_with_backprop() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0))
    results = iter([float("nan"), 1.0])
    gp.step(lambda: loss_of(model, *batches(1)[0]) * next(results))
    assert gp.counts()["fallback"] == 1
    assert gp.counts()["backprop"] == 4


@pytest.mark.parametrize("predictor", ["trusted", None])
def test_a_loss_that_is_not_finite_in_backprop_stops_with_the_layers_name(predictor: str | None) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), predictor)
    run(gp, model, batches(1))
    with torch.no_grad():
        model[7].weight[0, 0] = float("inf")
    with pytest.raises(
        NonFiniteError, match=r"step 1 \(BP\): lower .*; layer '7' is the first whose output is not finite"
    ):
        run(gp, model, batches(1))


def test_a_gradient_that_is_not_finite_teaches_nothing() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "with-network", stop_on_nonfinite=False)
    run(gp, model, batches(4))
    before = copy.deepcopy(gp.state_dict()["predictor"])
    with gp.batch():
        pass
    gp.optimizer.zero_grad()
    with gp.batch() as batch:
        batch.backward(loss_of(model, *batches(1)[0]))
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(float("inf"))
    assert gp.counts()["nonfinite"] == 4
    assert torch.equal(before["network"]["values"], gp.state_dict()["predictor"]["network"]["values"])


class Fragile(torch.autograd.Function):
    """The identity, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return torch.full_like(grads[0], ctx.value), None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("predictor", ["with-network", None])
def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_touched(
    predictor: str | None, value: float
) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="zero"), predictor, stop_on_nonfinite=True)
    run(gp, model, batches(3))
    before, state = copy.deepcopy(model.state_dict()), gp.state_dict()["predictor"]
    x, y = batches(1)[0]
    broken = nn.Sequential(*model[:7])
    with pytest.raises(NonFiniteError, match=r"the gradient of parameter '.*' is not finite at step 3 \(BP\)"):
        gp.step(lambda: nn.functional.cross_entropy(model[7:](Fragile.apply(broken(x), value)), y))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name, _ in model.named_parameters())
    assert gp.step_index == 3
    assert gp.counts()["nonfinite"] == 1
    assert gp.counts()["backprop"] == 4  # of the one BP batch before
    if predictor is not None:
        assert torch.equal(state["network"]["values"], gp.state_dict()["predictor"]["network"]["values"])
    gp.step(lambda: loss_of(model, x, y))  # nothing is left of it
    assert gp.step_index == 4


def test_an_uncovered_parameter_whose_gradient_is_not_finite_is_named() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), exclude="^0$", stop_on_nonfinite=True)
    with pytest.raises(NonFiniteError, match=r"parameter '1\.weight'"):
        gp.step(lambda: loss_of(model, *batches(1)[0]) + Fragile.apply(model[1].weight, float("nan")).sum() * 0)


def test_a_large_but_finite_gradient_does_not_stop() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gp = AdaGP(model, optimizer, schedules.always_backprop(), None, stop_on_nonfinite=True)
    gp.step(lambda: (model(torch.full((1, 2), 1e15)) * 1e15).sum())  # each entry 1e30, their squares overflow
    assert gp.step_index == 1


def test_looking_for_nan_is_left_out_where_it_would_be_dear(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "adagp")

    def language_model(tokens: int, **options: Any) -> AdaGP:
        model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
        gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.always_backprop(), None, **options)
        gp.step(lambda: model(torch.zeros(1, tokens, dtype=torch.long)).square().mean())
        return gp

    def next_is_nan(gp: AdaGP) -> None:
        gp.step(lambda: gp.model(torch.zeros(1, 4, dtype=torch.long)).mean() + Fragile.apply(gp.model[1].bias, NAN)[0])

    few = language_model(tokens=4)
    assert "stop_on_nonfinite=True checks them all the same" in caplog.text
    fresh = language_model(tokens=2000)
    fresh.load_state_dict(few.state_dict())
    next_is_nan(few)
    for gp in (language_model(tokens=2000), language_model(tokens=4, stop_on_nonfinite=True)):
        with pytest.raises(NonFiniteError):
            next_is_nan(gp)


class Pair(nn.Linear):
    """Returns more than a tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:  # type: ignore[override]
        return super().forward(x), 1


def test_a_layer_that_returns_no_tensor_trains_where_nobody_looks_at_it() -> None:
    model = Pair(3, 2)
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.always_backprop(), None)
    gp.step(lambda: model(torch.ones(2, 3))[0].square().mean())
    assert gp.counts() == {"backprop": 1}


def test_whoever_else_ran_the_backward_deals_with_infinities() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), stop_on_nonfinite=True)
    with gp.batch() as batch:
        (loss_of(model, *batches(1)[0]) + Fragile.apply(model[9].bias, float("inf")).sum() * 0).backward()
        batch.ran_backward()
    assert gp.step_index == 1


def test_divergence_is_reported_as_such_with_immediate_updates() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), immediate=True)
    run(gp, model, batches(3))
    with torch.no_grad():
        model[7].weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="layer '7' is the first whose output is not finite"):
        run(gp, model, batches(1))


def test_a_disabled_scaler_hides_no_nan() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    with pytest.raises(NonFiniteError):
        gp.step(
            lambda: loss_of(model, *batches(1)[0]) * float("nan"), scaler=torch.amp.GradScaler("cpu", enabled=False)
        )


# ---- misuse


def test_misuse_is_named_with_the_remedy() -> None:
    model, other = build(), build()
    with pytest.raises(ValueError, match=r"optimizer holds none of the model's parameters"):
        AdaGP(model, sgd(other), schedules.fixed(1, 1))
    norm = nn.Sequential(nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match=r"(?s)no layer that adagp can cover.*BatchNorm1d.*layers.register"):
        AdaGP(norm, sgd(norm), schedules.fixed(1, 1))
    with pytest.raises(ValueError, match="predictor='best' is unknown"):
        AdaGP(model, sgd(model), schedules.fixed(1, 1), "best")
    x, y = batches(1)[0]
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    with pytest.raises(RuntimeError, match=r"without batch.backward"), gp.batch():
        loss_of(model, x, y)
    with pytest.raises(RuntimeError, match="depends on no trainable parameter"):
        gp.step(lambda: torch.tensor(1.0))
    loss_of(model, x, y).backward()
    with pytest.raises(RuntimeError, match=r"left from an earlier backward: call optimizer.zero_grad"), gp.batch():
        pass
    gp.optimizer.zero_grad(set_to_none=False)
    gp.step(lambda: loss_of(model, x, y))
    with gp.batch() as batch:
        with pytest.raises(RuntimeError, match="still open"), gp.batch():
            pass
        batch.backward(loss_of(model, x, y))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(Phase.GP, "backprop"), "a GP plan has no backward, but layer '0'"),
        (Plan(Phase.BP, "backprop", {"nowhere": "zero"}), r"names \['nowhere'\]"),
        (Plan(Phase.BP, "oracle"), r"asks for \['oracle'\]"),
        (Plan(Phase.BP, "backprop", {"1": "zero"}), "gives '1' 'zero', but it is not covered"),
        (Plan(Phase.GP, "zero", {"1": "backprop"}), "gives '1' 'backprop', but it is not covered: it can have skip"),
        (Plan(Phase.GP, "predicted"), "predictor=None"),
    ],
)
def test_plans_that_make_no_sense_are_refused(plan: Plan, message: str) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), lambda step: plan, None)
    with pytest.raises(ValueError, match=message):
        gp.step(lambda: loss_of(model, *batches(1)[0]))


def test_an_error_in_the_forward_leaves_everything_as_it_was() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.BP, "backprop", {"0": "zero"}), None)
    with pytest.raises(RuntimeError):
        gp.step(lambda: model(torch.randn(1)))
    assert all(p.requires_grad for p in model.parameters())
    assert gp.step_index == 0
    run(gp, model, batches(1))
    assert gp.step_index == 1


def test_a_loss_that_reaches_a_weight_but_not_its_bias_trains() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x = torch.randn(8, 3, requires_grad=True)

    def slope() -> Tensor:
        (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return found.square().mean()

    with gp.batch() as batch:
        batch.backward(slope())
    assert model[0].bias.grad is None
    assert gp.quality().keys() == {"0", "1"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_large_prediction_is_not_taken_for_an_infinite_one(dtype: torch.dtype) -> None:
    large = 6e4 if dtype == torch.float16 else 3e19

    class Large(PaperPredictor):
        def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
            for layer, _ in requests:
                yield Rows(torch.full((layer.out, layer.fan_in), self.value), None)

        value = large

    model = nn.Sequential(nn.Linear(3, 4)).to(dtype)
    predictor = Large()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), predictor)
    for value, failed in ((large, False), (float("nan"), True), (float("inf"), True)):
        predictor.value = value
        with gp.batch() as batch:
            batch.backward(model(torch.ones(2, 3, dtype=dtype)).mean())
        assert batch.plan.phase.value == "GP"
        assert batch.failed == failed
        gp.optimizer.zero_grad()
        with gp.batch() as batch:
            batch.backward(model(torch.ones(2, 3, dtype=dtype)).mean())
        gp.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": None}, "model = None: give a torch.nn.Module"),
        ({"schedule": None}, "schedule = None: give one of adagp.schedules"),
        ({"schedule": "ladder"}, "schedule = 'ladder': give one of adagp.schedules"),
        ({"schedule": schedules.fixed}, r"schedule = <function fixed.*: it must be callable as schedule\(step\)"),
        ({"optimizer": None}, "optimizer = None: give the torch.optim optimizer"),
        ({"predictor": PaperPredictor}, "predictor = <class .*PaperPredictor'>: give an object, not its class"),
    ],
)
def test_arguments_of_another_kind_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    model = build()
    given = {"model": model, "optimizer": sgd(model), "schedule": schedules.fixed(1, 1)} | arguments
    with pytest.raises(TypeError, match=message):
        AdaGP(**given)


@pytest.mark.parametrize("loss", [None, 1.0])
@pytest.mark.parametrize("schedule", [schedules.fixed(1, 1), schedules.always_backprop()])
def test_a_closure_that_returns_no_loss_is_told_so(loss: Any, schedule: schedules.Schedule) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedule)
    with pytest.raises(TypeError, match=rf"the loss is {loss!r}, not a tensor"):
        gp.step(lambda: loss)


def test_a_batch_made_ahead_is_refused_when_its_step_is_over() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x, y = batches(1)[0]
    first, ahead = gp.batch(), gp.batch()
    with first:
        first.backward(loss_of(model, x, y))
    for late in (first, ahead):
        with pytest.raises(RuntimeError, match=r"made for step 0, and step 1 is next: call gp.batch\(\)"):
            late.__enter__()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_that_filled_only_some_places_is_refused(tmp_path: Path) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    run(gp, model, batches(4))
    checkpoint.save({"gp": gp}, checkpoint_id=tmp_path, no_dist=True)
    later = build()
    fresh = AdaGP(later, sgd(later), schedules.fixed(1, 1))
    with pytest.raises(ValueError, match=r"the state has \d+ parts of \d+: torch\.distributed\.checkpoint fills only"):
        checkpoint.load({"gp": fresh}, checkpoint_id=tmp_path, no_dist=True)
    assert fresh.step_index == 0
