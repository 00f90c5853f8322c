"""Parameters frozen and unfrozen while training: every batch looks at `requires_grad` as it is then."""

import pytest
import torch
from torch import nn

from adagp import AdaGP, Phase, Plan, schedules
from adagp.schedules import Schedule
from tests.nets import batches, build, equal_parameters, loss_of, sgd

MIXED = schedules.from_function(lambda step: Plan(Phase.BP, "backprop", {"3": "zero", "7": "topk", "9": "random"}))


def train(gp: AdaGP, steps: int) -> None:
    for x, y in batches(steps):
        gp.step(lambda x=x, y=y: loss_of(gp.model, x, y))


def copy_of(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def unchanged(module: nn.Module, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(new, old) for new, old in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("source", ["predicted", "mean", "last", "zero", "random"])
def test_a_layer_frozen_after_attaching_stays_where_it_is(source: str, immediate: bool) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(4, 1, 1, rungs=((1, 1),), source=source), immediate=immediate)
    train(gp, 4)
    model[7].requires_grad_(False)
    before, other = copy_of(model[7]), copy_of(model[9])
    train(gp, 6)
    assert unchanged(model[7], before)
    assert not unchanged(model[9], other)
    assert not model[7].weight.requires_grad
    assert not model[7].bias.requires_grad


def test_a_mixed_plan_does_not_unfreeze() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), MIXED)
    train(gp, 2)
    for name in ("3", "7", "9"):
        model.get_submodule(name).requires_grad_(False)
    before = copy_of(model)
    train(gp, 2)
    for name in ("3", "7", "9"):
        assert not any(parameter.requires_grad for parameter in model.get_submodule(name).parameters())
    frozen = [name for name, _ in model.named_parameters() if name[0] in "379"]
    moved = dict(zip((name for name, _ in model.named_parameters()), before, strict=True))
    assert all(torch.equal(model.get_parameter(name), moved[name]) for name in frozen)
    assert not torch.equal(model[0].weight, moved["0.weight"])


@pytest.mark.parametrize("schedule", [schedules.ladder(2, 1, 1, rungs=((1, 1),)), MIXED], ids=["gp", "mixed"])
def test_a_frozen_bias_stays_where_it_is_while_its_weight_trains(schedule: Schedule) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedule)
    train(gp, 2)
    model[7].bias.requires_grad_(False)
    bias, weight = model[7].bias.detach().clone(), model[7].weight.detach().clone()
    train(gp, 4)
    assert torch.equal(bias, model[7].bias)
    assert not torch.equal(weight, model[7].weight)
    assert not model[7].bias.requires_grad


def test_a_bias_goes_on_with_backprop_while_its_weight_is_frozen() -> None:
    model, plain = build(), build()
    gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), MIXED)
    for net in (model, plain):
        net[7].weight.requires_grad_(False)
    x, y = batches(1)[0]
    loss_of(plain, x, y).backward()
    with gp.batch() as batch:
        batch.backward(loss_of(model, x, y))
    assert torch.equal(model[7].bias.grad, plain[7].bias.grad)
    assert model[7].weight.grad is None


def test_unfreezing_a_layer_makes_it_train_in_every_phase() -> None:
    model = build()
    model[7].requires_grad_(False)
    gp = AdaGP(model, sgd(model), schedules.ladder(3, 1, 1, rungs=((1, 0),), source="mean"))
    train(gp, 2)
    assert [row.covered for row in gp.coverage().rows if row.layer == "7"] == [False]
    model[7].requires_grad_(True)
    train(gp, 1)  # the last warm-up batch gives it a mean
    assert [row.covered for row in gp.coverage().rows if row.layer == "7"] == [True]
    before = copy_of(model[7])
    assert gp.next_plan().phase is Phase.GP
    train(gp, 1)
    assert not unchanged(model[7], before)


def test_a_backbone_frozen_at_first_trains_like_the_plain_loop() -> None:
    model, plain = build(), build()
    gp, optimizer = AdaGP(model, sgd(model), schedules.always_backprop()), sgd(plain)
    for net in (model, plain):
        net[0].requires_grad_(False)
    for step, (x, y) in enumerate(batches(6)):
        if step == 3:
            model[0].requires_grad_(True)
            plain[0].requires_grad_(True)
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
        loss_of(plain, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert equal_parameters(model, plain)


def test_coverage_tells_the_present() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    everything = gp.coverage().share
    model[7].requires_grad_(False)
    row = next(row for row in gp.coverage().rows if row.layer == "7")
    assert not row.covered
    assert "frozen" in row.reason
    model[7].requires_grad_(True)
    assert gp.coverage().share == everything


def test_freezing_resumes_bit_for_bit() -> None:
    runs = []
    for cut in (None, 5):
        model = build()
        gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1))
        train(gp, 3)
        model[0].requires_grad_(False)
        for step, (x, y) in enumerate(batches(9)):
            if step == cut:
                state = gp.state_dict(), model.state_dict(), gp.optimizer.state_dict()
                model = build(seed=1)
                model[0].requires_grad_(False)
                model.load_state_dict(state[1])
                gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1))
                gp.load_state_dict(state[0])
                gp.optimizer.load_state_dict(state[2])
            gp.step(lambda x=x, y=y, model=model: loss_of(model, x, y))
        runs.append(model)
    assert equal_parameters(*runs)


def test_a_layer_frozen_between_making_a_batch_and_entering_it_rests() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1, rungs=((1, 0),), source="mean"))
    train(gp, 2)
    batch = gp.batch()
    model[7].requires_grad_(False)
    before = copy_of(model[7])
    with batch:
        batch.backward(loss_of(model, *batches(1)[0]))
    batch.step()
    assert unchanged(model[7], before)


def test_a_layer_frozen_inside_a_gp_batch_rests() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1, rungs=((1, 0),), source="mean"))
    train(gp, 2)
    before = copy_of(model[7])
    with gp.batch() as batch:
        model[7].requires_grad_(False)
        batch.backward(loss_of(model, *batches(1)[0]))
    batch.step()
    assert unchanged(model[7], before)


def test_unfreezing_inside_a_batch_with_another_source_is_refused() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), MIXED)

    def unfreeze() -> torch.Tensor:
        model.requires_grad_(True)
        return loss_of(model, *batches(1)[0])

    with pytest.raises(RuntimeError, match=r"requires_grad of parameter '3\.weight' was switched on inside the batch"):
        gp.step(unfreeze)
    assert all(parameter.grad is None for parameter in model.parameters())
    train(gp, 1)


def test_a_model_that_is_frozen_altogether_is_not_said_to_be_badly_covered(caplog: pytest.LogCaptureFixture) -> None:
    model = build().requires_grad_(False)
    AdaGP(model, sgd(model), schedules.fixed(1, 1))
    assert "are covered" not in caplog.text
