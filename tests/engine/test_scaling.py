"""Whoever runs the backward: what sources and optimizers get is the same."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, NonFiniteError, Phase, Plan, schedules
from adagp.predictors import FeatureSpec, Pooling
from tests.nets import batches, build, equal_parameters, loss_of, sgd
from tests.watcher import Watcher

MIXED = {"0": "topk", "3": "last", "7": "random"}


def phases(step: int) -> Plan:
    """True gradients, a mix of every way a source gets its own, and GP."""
    return (Plan(Phase.BP, "backprop"), Plan(Phase.BP, "backprop", MIXED), Plan(Phase.GP, "predicted"))[step % 3]


class Library:
    """Another library's mixed precision: it scales in its backward, and its optimizer unscales every gradient."""

    def __init__(self, optimizer: torch.optim.Optimizer, parts: int = 1) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.optimizer, self.parts = optimizer, parts
        self.param_groups = optimizer.param_groups

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss / self.parts).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def run(model: nn.Module, gp: AdaGP, steps: int = 9, **options: Any) -> AdaGP:
    for x, y in batches(steps):
        gp.step(lambda x=x, y=y: loss_of(model, x, y), **options)
    return gp


@pytest.mark.parametrize("predictor", ["trusted", "with-network", "paper"])
def test_another_backward_changes_nothing(predictor: str) -> None:
    one, two = build(), build()
    first = run(one, AdaGP(one, sgd(one), phases, predictor))
    second = run(two, AdaGP(two, sgd(two), phases, predictor), backward=lambda loss: loss.backward())
    assert equal_parameters(one, two)
    assert first.quality() == second.quality()
    assert first.counts() == second.counts()


@pytest.mark.parametrize("predictor", ["trusted", "with-network", "paper"])
def test_another_librarys_scaler_changes_nothing(predictor: str) -> None:
    """A power of two is exact in float32. In GP its optimizer unscales predictions too, so they come scaled."""
    one, two = build(), build()
    first = run(one, AdaGP(one, sgd(one), phases, predictor))
    library = Library(sgd(two))
    gp = AdaGP(two, library, phases, predictor)  # type: ignore[arg-type]
    second = run(two, gp, scaler=library.scaler, backward=library.backward)
    assert equal_parameters(one, two)
    assert first.quality() == second.quality()
    assert first.counts()["predicted"] == second.counts()["predicted"] > 0


def test_its_scaler_steps_a_plain_optimizer_too() -> None:
    one, two = build(), build()
    run(one, AdaGP(one, sgd(one), phases))
    optimizer = sgd(two)
    library = Library(optimizer)
    run(two, AdaGP(two, optimizer, phases), scaler=library.scaler, backward=library.backward)
    assert equal_parameters(one, two)


def test_gradients_stay_in_its_scale_until_its_optimizer_divides_them() -> None:
    models = [build(), build()]
    found = []
    for model, scaled in zip(models, (False, True), strict=True):
        library = Library(sgd(model))
        gp = AdaGP(model, library.optimizer, phases)
        for x, y in batches(2):
            with gp.batch(scaler=library.scaler if scaled else None) as batch:
                batch.backward(loss_of(model, x, y), by=library.backward if scaled else None)
            grads = [part.grad.clone() for part in model.parameters() if part.grad is not None]
            library.optimizer.zero_grad()
        found.append(grads)
    assert all(torch.equal(1024 * plain, scaled) for plain, scaled in zip(*found, strict=True))


def test_its_scaler_skips_a_step_that_overflows() -> None:
    model = build()
    library = Library(sgd(model))
    library.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    before = copy.deepcopy(model[0].weight.detach())
    gp = AdaGP(model, library, schedules.always_backprop())  # type: ignore[arg-type]
    x, y = batches(1)[0]
    gp.step(lambda: 1e6 * loss_of(model, x, y), scaler=library.scaler, backward=library.backward)
    assert torch.equal(before, model[0].weight)
    assert library.scaler.get_scale() == 2.0**119
    assert gp.counts()["nonfinite"] > 0


@pytest.mark.parametrize("cause", ["failed", "skip"])
def test_its_scaler_takes_a_gp_batch_without_any_gradient(cause: str) -> None:
    """A GradScaler asserts where it is to step without a gradient, and the library knows nothing of that."""
    model = build()
    optimizer = sgd(model)
    library = Library(optimizer)
    gp = AdaGP(model, library, schedules.ladder(1, 1, 1, rungs=((1, 1),), source="skip"))  # type: ignore[arg-type]
    run(model, gp, 1, scaler=library.scaler, backward=library.backward)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])
    x, y = batches(1)[0]
    model.eval()  # batch norm's statistics move in any forward
    with gp.batch(scaler=library.scaler) as batch:
        loss = loss_of(model, x, y)
        batch.backward(loss * float("nan") if cause == "failed" else loss, by=library.backward)
    assert batch.failed == (cause == "failed")
    library.step()
    after = [model.state_dict(), optimizer.state_dict()["state"]]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert library.scaler.get_scale() == 1024
    optimizer.zero_grad()
    model.train()
    run(model, gp, 1, scaler=library.scaler, backward=library.backward)
    assert not torch.equal(before[0]["0.weight"], model[0].weight), "the next batch trains again"
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("scaled", [False, True])
def test_a_divisor_in_its_backward_reaches_the_gradient_of_the_loss_in_every_phase(scaled: bool) -> None:
    """The features of a batch must mean the same in BP, where a predictor learns, and in GP, where it predicts."""
    seen = []
    for foreign in (False, True):
        model = build()
        watcher = Watcher(FeatureSpec(output=Pooling(1, 1), loss_grad=True))
        library = Library(sgd(model), parts=2)
        if not scaled:
            library.scaler = torch.amp.GradScaler("cpu", enabled=False)
        gp = AdaGP(model, library.optimizer, schedules.fixed(1, 1), watcher)
        for x, y in batches(4):
            with gp.batch(scaler=library.scaler if foreign else None) as batch:
                for half in (slice(0, 4), slice(4, 8)):
                    loss = loss_of(model, x[half], y[half])
                    batch.backward(loss if foreign else loss / 2, by=library.backward if foreign else None)
            library.optimizer.zero_grad()
        seen.append([part for features in watcher.seen for one in features.values() for part in one])
    assert len(seen[0]) > 8
    for one, two in zip(*seen, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)


def test_a_scale_that_nobody_gave_is_refused() -> None:
    model = build()
    library = Library(sgd(model))
    gp = AdaGP(model, library.optimizer, schedules.ladder(1, 1, 1))
    x, y = batches(1)[0]
    with pytest.raises(
        RuntimeError, match=r"Library\.backward multiplied the loss by 1024.*scaler=accelerator\.scaler"
    ):
        gp.step(lambda: loss_of(model, x, y), backward=library.backward)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert gp.step_index == 0


def test_a_backward_that_does_nothing_is_refused() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    x, y = batches(1)[0]
    with pytest.raises(RuntimeError, match=r"ran no backward from the loss"):
        gp.step(lambda: loss_of(model, x, y), backward=lambda loss: None)


def test_immediate_updates_cannot_wait_for_its_scaler() -> None:
    model = build()
    library = Library(sgd(model))
    gp = AdaGP(model, library, schedules.ladder(1, 1, 1), immediate=True)  # type: ignore[arg-type]
    x, y = batches(1)[0]
    with pytest.raises(ValueError, match=r"immediate=True: another library's GradScaler"):
        gp.step(lambda: loss_of(model, x, y), scaler=library.scaler, backward=library.backward)


def test_gradients_of_another_backward_are_checked_like_ours() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), stop_on_nonfinite=True)
    x, y = batches(1)[0]

    def broken(loss: Tensor) -> None:
        loss.backward()
        model[7].weight.grad.fill_(float("inf"))

    with pytest.raises(NonFiniteError, match=r"gradient of parameter '7\.weight'"):
        gp.step(lambda: loss_of(model, x, y), backward=broken)


def test_in_gp_nobody_runs_a_backward() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0))
    calls: list[Callable[..., object]] = []
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y), backward=calls.append)
    assert not calls
