"""A batch that is given in several blocks is the batch that is given in one."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, schedules
from tests.nets import batches, build, equal_parameters, loss_of, sgd

PARTS = (slice(0, 3), slice(3, 4), slice(4, 8))
PHASES = [
    Plan(Phase.BP, "backprop"),
    Plan(Phase.BP, "backprop", {"0": "topk", "3": "last", "7": "random"}),
    Plan(Phase.GP, "predicted"),
    Plan(Phase.GP, "mean", {"9": "predicted"}),
]


def part_of(model: nn.Module, x: Tensor, y: Tensor, part: slice) -> Tensor:
    return loss_of(model, x[part], y[part]) * (len(x[part]) / len(x))


def at_once(model: nn.Module, schedule: Any, steps: int, scaler: Any = None) -> AdaGP:
    gp = AdaGP(model, sgd(model), schedule)
    for x, y in batches(steps):
        with gp.batch(scaler) as batch:
            for part in PARTS:
                batch.backward(part_of(model, x, y, part))
        batch.step()
        gp.optimizer.zero_grad()
    return gp


def over_the_loop(model: nn.Module, schedule: Any, steps: int, scaler: Any = None) -> AdaGP:
    gp = AdaGP(model, sgd(model), schedule)
    for x, y in batches(steps):
        for part in PARTS:
            gp.step(lambda x=x, y=y, part=part: part_of(model, x, y, part), scaler, last=part is PARTS[-1])
    return gp


@settings(max_examples=12, deadline=None)
@given(order=st.lists(st.sampled_from(range(4)), min_size=1, max_size=6), scaled=st.booleans())
def test_blocks_of_one_batch_are_bit_identical_to_one_block(order: list[int], scaled: bool) -> None:
    one, two = build(), build()
    runs = []
    for model, run in ((one, at_once), (two, over_the_loop)):
        torch.manual_seed(1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        runs.append(run(model, lambda step: PHASES[order[step % len(order)]], len(order) + 1, scaler))
    assert equal_parameters(one, two)
    assert runs[0].quality() == runs[1].quality()
    assert runs[0].counts() == runs[1].counts()
    assert runs[1].step_index == len(order) + 1


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_between_the_blocks_the_model_is_as_without_a_batch(phase: int) -> None:
    model, other = build(), build()
    gp = AdaGP(model, sgd(model), lambda step: PHASES[phase])
    AdaGP(other, sgd(other), lambda step: PHASES[phase])
    x, y = batches(1)[0]
    with gp.batch(last=False) as batch:
        batch.backward(part_of(model, x, y, PARTS[0]))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()
    kept = [None if part.grad is None else part.grad.clone() for part in model.parameters()]
    model.eval()
    model(x)  # an evaluation in the middle is no part of the batch
    model.train()
    state = gp.state_dict()
    with gp.batch() as again:
        again.backward(part_of(model, x, y, PARTS[1]))
    assert again is batch
    assert {len(entry.samples) for entry in batch._layers.values()} == {2}
    assert gp.step_index == 1
    assert state["progress"]["step_index"] == 0
    assert len(kept) == len(list(model.parameters()))


def test_an_error_in_a_later_block_gives_the_whole_batch_up() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y), last=False)
    batch = gp.batch(last=False)
    with pytest.raises(ZeroDivisionError), batch:
        raise ZeroDivisionError
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="step 0 was given up"), batch:
        pass
    gp.step(lambda: loss_of(model, x, y))
    assert gp.step_index == 1


def test_a_micro_batch_without_its_backward_is_noticed() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y), last=False)
    with pytest.raises(RuntimeError, match=r"ended without batch\.backward"), gp.batch():
        loss_of(model, x, y)


def test_freezing_between_micro_batches_is_refused() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y), last=False)
    model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="frozen or unfrozen between two micro-batches of step 0"):
        gp.step(lambda: loss_of(model, x, y))
    gp.step(lambda: loss_of(model, x, y))
    assert gp.step_index == 1


def test_another_scaler_in_the_middle_is_refused() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y), last=False)
    with pytest.raises(ValueError, match="every micro-batch of a batch the same one"):
        gp.step(lambda: loss_of(model, x, y), scaler=torch.amp.GradScaler("cpu"))


def test_a_gp_batch_with_a_micro_batch_that_is_not_finite_applies_nothing() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y) * float("nan"), last=False)
    gp.step(lambda: loss_of(model, x, y))
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert gp.counts() == {"fallback": 1}
    assert gp.phase is Phase.BP


def test_what_needs_the_whole_batch_is_refused() -> None:
    model = build()
    gp = AdaGP(model, torch.optim.LBFGS(model.parameters()), schedules.always_backprop())
    with pytest.raises(ValueError, match="last=False: LBFGS"):
        gp.step(lambda: loss_of(model, *batches(1)[0]), last=False)
    other = build()
    probing = AdaGP(other, sgd(other), schedules.growing(steps=8))
    with pytest.raises(ValueError, match="last=False: Growing"):
        probing.step(lambda scale: loss_of(other, *batches(1)[0]), last=False)


def test_a_loaded_state_begins_a_new_batch() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x, y = batches(1)[0]
    state = gp.state_dict()
    gp.step(lambda: loss_of(model, x, y), last=False)
    gp.load_state_dict(state)
    gp.optimizer.zero_grad()
    with gp.batch() as batch:
        batch.backward(loss_of(model, x, y))
    assert {len(entry.samples) for entry in batch._layers.values()} == {1}
