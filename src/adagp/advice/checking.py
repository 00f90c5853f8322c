"""Refuses a training that no measurement could make sense of, in one line that says where and why."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from adagp.advice.errors import AdviceError
from adagp.advice.subject import Subject, parts_of
from adagp.user_code import one_line


def check_first_batch(subject: Subject) -> None:
    """Run the first batch and refuse what no measurement could make sense of.

    Raises:
        AdviceError: When the closure fails or gives no loss, or the batch changes what the model consists of.
    """
    grads = _grads(subject.model)
    with explained("closure: the first batch", subject.model):
        loss = subject.loss_of()
    if not isinstance(loss, Tensor):
        remedy = "return its loss" if hasattr(loss, "loss") else "return the loss, a tensor with one number"
        raise AdviceError(f"closure: gives a {type(loss).__name__}; {remedy}")
    if loss.numel() != 1:
        raise AdviceError(
            f"closure: the loss has shape {tuple(loss.shape)}; reduce it to one number, for example by its mean"
        )
    if not loss.requires_grad:
        raise AdviceError(
            "closure: the loss depends on no trainable parameter; compute it from the model's output, without detach() "
            "or no_grad()"
        )
    if _grads(subject.model) != grads:
        raise AdviceError("closure: calls backward() itself; only return the loss, and leave out backward and step")
    if not bool(torch.isfinite(loss)):
        raise AdviceError(f"closure: the loss of the first batch is {loss.item()}; give a model and data it can train")
    with explained("closure: the backward of the first batch", subject.model):
        loss.backward()
    if all(parameter.grad is None for parameter in subject.parameters()):
        raise AdviceError("optimizer: no gradient reaches its parameters; build it from the parameters of this model")
    with explained("optimizer: its step", subject.model):
        subject.optimizer.step()
        subject.optimizer.zero_grad(set_to_none=True)
    check_parts(subject)


def check_parts(subject: Subject) -> None:
    """Refuse a model that builds or replaces parts of itself while it trains: the optimizer does not know them.

    Raises:
        AdviceError: When the model consists of other parts than before the first batch.
    """
    if changed := sorted(subject.parts ^ parts_of(subject.model)):
        raise AdviceError(
            f"model: a batch changed what it consists of ({changed[0][0]!r}); build all its modules and parameters in "
            "__init__"
        )


def _grads(model: nn.Module) -> list[tuple[int, int]]:
    """Which gradients a model has, and how often each was written."""
    return [(id(one.grad), one.grad._version) for one in model.parameters() if one.grad is not None]


@contextmanager
def explained(what: str, model: nn.Module) -> Iterator[None]:
    """Inside, an error of the user's code becomes one line that says what fails, in which layer, where and why."""
    try:
        yield
    except AdviceError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{_layer_of(error, model)}{one_line(error)}"
        raise AdviceError(f"{what} fails: {reason}; correct it there") from error


def _layer_of(error: BaseException, model: nn.Module) -> str:
    """The innermost layer that an error passed; empty outside of them."""
    names = {id(part): name for name, part in model.named_modules() if name}
    passed = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [part for part in passed if id(part) in names]
    return f"in layer {names[id(layers[-1])]} ({type(layers[-1]).__name__}): " if layers else ""
