"""A mistake in each place gives one clear line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adagp import advise
from adagp.advice import AdviceError
from adagp.advice.subject import build_subject
from tests.nets import batches, build, loss_of, sgd


def advised(closure: Any, model: Any = None, optimizer: Any = None, **options: Any) -> object:
    model = build() if model is None else model
    return advise(model, sgd(model) if optimizer is None else optimizer, closure, seconds=0.01, **options)


class Growing(nn.Module):
    """Adds a layer in one of its forwards."""

    def __init__(self, at: int = 1) -> None:
        super().__init__()
        self.first, self.calls, self.at = nn.Linear(2, 2), 0, at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.at:
            self.late = nn.Linear(2, 2)
        return self.first(x)  # type: ignore[no-any-return]


def _wrong_shape(model: nn.Module) -> Callable[[], Any]:
    return lambda: model(torch.ones(2, 5, 6, 6)).sum()


X, Y = batches(1)[0]
MISTAKES: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "wrong shapes": (
        _wrong_shape,
        r"^closure: the first batch fails: .*test_subject.py, line \d+: RuntimeError: .*channels",
    ),
    "no scalar": (lambda model: lambda: model(X), r"^closure: the loss has shape \(8, 3\); reduce it to one number"),
    "no tensor": (lambda model: lambda: loss_of(model, X, Y).item(), "^closure: gives a float; return the loss"),
    "no graph": (lambda model: lambda: loss_of(model, X, Y).detach(), "^closure: the loss depends on no trainable"),
    "not finite": (
        lambda model: lambda: loss_of(model, X, Y) * float("nan"),
        "^closure: the loss of the first batch is nan",
    ),
    "no function": (lambda model: 3, "^closure: is a int; give a function"),
    "two arguments": (lambda model: lambda x, y: 0, "^closure: asks for 2 arguments; without a loader"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_closure(name: str) -> None:
    model = build()
    make, message = MISTAKES[name]
    with pytest.raises(AdviceError, match=message) as caught:
        advised(make(model), model)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_the_loader() -> None:
    for loader, message in (
        ([], "^loader: it is empty"),
        (3, "^loader: batch 1 fails: TypeError"),
        ((1 / 0 for _ in range(3)), "^loader: batch 1 fails: .*ZeroDivisionError"),
        (
            (1 / (1 - place) for place in range(3)),
            "^loader: batch 2 fails: .*test_subject.py, line .*ZeroDivisionError",
        ),
    ):
        with pytest.raises(AdviceError, match=message):
            advised(lambda batch: batch, loader=loader)
    with pytest.raises(AdviceError, match="with a loader it takes a batch"):
        advised(lambda: 0, loader=[1])


def test_a_model_that_changes_itself() -> None:
    for at in (1, 5):
        model = Growing(at)
        with pytest.raises(AdviceError, match=r"model: a batch changed what it consists of \('late"):
            advised(lambda: model(torch.ones(1, 2)).sum(), model, clock=lambda: 0.0)  # noqa: B023
        assert not hasattr(model, "late")
    lazy = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))
    with pytest.raises(AdviceError, match="model: a parameter has no shape yet"):
        advised(lambda: lazy(torch.ones(1, 2)).sum(), lazy, torch.optim.SGD(lazy[0].parameters()))


def test_a_mistake_in_the_optimizer_or_the_model() -> None:
    model, other = build(), build()
    with pytest.raises(AdviceError, match="optimizer: it holds no trainable parameter of the model"):
        advised(lambda: loss_of(model, X, Y), model, sgd(other))
    with pytest.raises(AdviceError, match="optimizer: is a Sequential"):
        advised(lambda: loss_of(model, X, Y), model, model)
    with pytest.raises(AdviceError, match="model: is a int"):
        advise(3, sgd(model), lambda: 0)  # type: ignore[arg-type]
    unused = nn.ModuleList([model, nn.Linear(2, 2)])
    with pytest.raises(AdviceError, match="optimizer: no gradient reaches its parameters"):
        advised(lambda: loss_of(model, X, Y), unused, sgd(unused[1]))


def test_a_mistake_that_shows_in_the_backward_or_the_step() -> None:
    model = nn.Linear(2, 2)

    def changed_in_place() -> torch.Tensor:
        found = model(torch.ones(1, 2)).exp()
        loss = found.square().sum()
        found.add_(1)
        return loss

    with pytest.raises(AdviceError, match=r"^closure: the backward of the first batch fails: .*modified by an inplace"):
        advised(changed_in_place, model)
    with pytest.raises(AdviceError, match=r"^optimizer: its step fails: TypeError: LBFGS.step\(\) missing 1 required"):
        advised(lambda: model(torch.ones(1, 2)).sum(), model, torch.optim.LBFGS(model.parameters()))


def test_a_mistake_that_shows_later() -> None:
    model, left = nn.Linear(2, 2), [5]

    def tire() -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("I am\ntired")
        return model(torch.ones(1, 2)).sum()

    with pytest.raises(
        AdviceError, match=r"^closure: a later batch fails: .*line .*RuntimeError: I am tired"
    ) as caught:
        advised(tire, model, clock=lambda: 0.0)
    assert "\n" not in str(caught.value)


def test_a_model_without_numbers() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(AdviceError, match=r"^model: parameters on the meta device have no numbers"):
        advised(lambda: model(torch.ones(1, 2)).sum(), model)
    with pytest.raises(AdviceError, match=r"^optimizer: it holds no trainable parameter"):
        advised(lambda: 0, nn.ReLU(), sgd(nn.Linear(2, 2)))


def test_a_closure_may_return_more_than_the_loss_and_take_the_scale() -> None:
    model, scales = build(), []

    def closure(batch: Any, scale: float) -> tuple[torch.Tensor, int]:
        scales.append(scale)
        return loss_of(model, *batch), 1

    subject = build_subject(model, sgd(model), closure, batches(15), lambda: 0.0)
    assert (len(subject.batches), subject.first_unseen) == (12, 6)
    assert subject.loss_of(17, 0.5).requires_grad
    assert scales == [0.5]
