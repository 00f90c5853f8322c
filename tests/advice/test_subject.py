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
    """Adds a layer in its first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(2, 2)
        return self.late(self.first(x))  # type: ignore[no-any-return]


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
        (3, "^loader: gives no batch: TypeError"),
        ((1 / 0 for _ in range(3)), "^loader: gives no batch: .*ZeroDivisionError"),
    ):
        with pytest.raises(AdviceError, match=message):
            advised(lambda batch: batch, loader=loader)
    with pytest.raises(AdviceError, match="with a loader it takes a batch"):
        advised(lambda: 0, loader=[1])


def test_a_model_that_changes_itself() -> None:
    model = Growing()
    with pytest.raises(AdviceError, match="model: the first batch changed what it consists of \\('late"):
        advised(lambda: model(torch.ones(1, 2)).sum(), model)
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


def test_a_closure_may_return_more_than_the_loss_and_take_the_scale() -> None:
    model, scales = build(), []

    def closure(batch: Any, scale: float) -> tuple[torch.Tensor, int]:
        scales.append(scale)
        return loss_of(model, *batch), 1

    subject = build_subject(model, sgd(model), closure, batches(15), lambda: 0.0)
    assert (len(subject.batches), subject.first_unseen) == (12, 6)
    assert subject.loss_of(17, 0.5).requires_grad
    assert scales == [0.5]
