"""What is advised: a model, its optimizer, and batches whose loss a closure computes."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adagp import coarse
from adagp.advice.errors import AdviceError
from adagp.advice.rounds import Clock
from adagp.user_code import one_line

BATCHES = 12
"""Batches taken from a loader: half to warm up on, half for the spread between them."""
RESTING = 1e-6
"""Factor of the learning rate while time is measured: the weights rest, and no option diverges."""
LEAST_BATCHES = 2
"""Batches taken from a loader however slow it is, to see how far two of them differ."""


@dataclass
class Subject:
    """A model in training, one batch at a time.

    Attributes:
        model: The user's own.
        optimizer: The user's own.
        loss: Computes the loss of a batch with samples at a fraction of their size.
        batches: Some batches of the loader; one that says nothing where the closure has its own.
        takes_scale: Whether the closure makes its samples smaller itself.
        load_seconds: How long the loader took for each batch after the first; empty without a loader.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[Any, float], Tensor]
    batches: list[Any]
    takes_scale: bool = False
    load_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = parts_of(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return next(self.model.parameters()).device

    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the optimizer."""
        groups = self.optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]

    @property
    def first_unseen(self) -> int:
        """The index from which on batches are not used to warm up; 0 where there is a single one."""
        return len(self.batches) // 2

    def loss_of(self, index: int = 0, scale: float = 1.0) -> Tensor:
        """The loss of a batch; at a smaller scale the images that the model is given are made smaller."""
        batch = self.batches[index % len(self.batches)]
        if scale == 1 or self.takes_scale:
            return self.loss(batch, scale)
        with smaller_images(self.model, scale):
            return self.loss(batch, 1.0)

    def step(self, index: int = 0, scale: float = 1.0) -> None:
        """One whole batch by plain backpropagation."""
        self.loss_of(index, scale).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def rested_step(self) -> None:
        """One whole batch that hardly moves the weights."""
        with self.resting():
            self.step()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside, steps hardly move the weights."""
        before = [group.get("lr") for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, before, strict=True):
            if rate is not None:
                group["lr"] = rate * RESTING
        try:
            yield
        finally:
            for group, rate in zip(self.optimizer.param_groups, before, strict=True):
                if rate is not None:
                    group["lr"] = rate


@contextmanager
def smaller_images(model: nn.Module, scale: float) -> Iterator[None]:
    """Inside, the model sees its images at a fraction of their size; AdviceError where it is given none."""

    def shrink(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if not any(is_image(value) for value in inputs):
            raise AdviceError("the model is given no images: let the closure take the scale of its samples")
        return tuple(coarse.images(value, scale) if is_image(value) else value for value in inputs)

    hook = model.register_forward_pre_hook(shrink)
    try:
        yield
    finally:
        hook.remove()


def is_image(value: object) -> bool:
    """Whether a value is a batch of images as convolutions take them."""
    return isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point()


def build_subject(
    model: object,
    optimizer: object,
    closure: object,
    loader: Iterable[Any] | None,
    clock: Clock,
    loading_seconds: float = inf,
) -> Subject:
    """Check what can be checked without a batch, and take some from the loader.

    A loader that takes longer than `loading_seconds` is asked for fewer of them.

    Raises:
        AdviceError: When an argument is not what it should be.
    """
    if not isinstance(model, nn.Module):
        raise AdviceError(f"model: is a {type(model).__name__}; give a torch.nn.Module")
    if not isinstance(optimizer, Optimizer):
        raise AdviceError(f"optimizer: is a {type(optimizer).__name__}; give the torch.optim optimizer of the model")
    if not callable(closure):
        raise AdviceError(f"closure: is a {type(closure).__name__}; give a function that returns the loss")
    if any(True for _ in model.parameters()) and not any(one.requires_grad for one in model.parameters()):
        raise AdviceError("model: none of its parameters needs a gradient; call requires_grad_() on those to train")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in held and parameter.requires_grad for parameter in model.parameters()):
        raise AdviceError(
            "optimizer: it holds no trainable parameter of the model; build it from model.parameters(), after moving "
            "the model to its device"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise AdviceError("model: parameters on the meta device have no numbers; build it on a real device")
    wanted, function = required_arguments(closure), closure
    if loader is None:
        if wanted > 1:
            raise AdviceError(f"closure: asks for {wanted} arguments; without a loader it takes none, or the scale")
        return Subject(model, optimizer, lambda _, scale: _loss(function(*(scale,) * wanted)), [None], wanted == 1)
    if wanted not in (1, 2):
        raise AdviceError(f"closure: asks for {wanted} arguments; with a loader it takes a batch, or a batch and scale")
    batches, seconds = _first_batches(loader, clock, loading_seconds)
    return Subject(
        model,
        optimizer,
        lambda batch, scale: _loss(function(batch, *(scale,) * (wanted - 1))),
        batches,
        wanted == 2,
        seconds,
    )


def _loss(result: Any) -> Any:
    """The loss in what a closure returned: alone, or first in a tuple."""
    return result[0] if isinstance(result, tuple) and result else result


def required_arguments(function: Callable[..., Any], unknown: int = 0) -> int:
    """How many arguments must be given; `unknown` where a callable, such as one written in C, does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return unknown
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)


def _first_batches(loader: Iterable[Any], clock: Clock, most_seconds: float) -> tuple[list[Any], list[float]]:
    """Some batches and the seconds that each but the first took: with the first, workers start."""
    batches: list[Any] = []
    seconds: list[float] = []
    try:
        iterator = iter(loader)
        before = clock()
        for batch in islice(iterator, BATCHES):
            now = clock()
            batches.append(batch)
            seconds.append(now - before)
            if len(batches) >= LEAST_BATCHES and sum(seconds) > most_seconds:
                break
            before = clock()
    except (Exception, SystemExit) as error:
        raise AdviceError(f"loader: batch {len(batches) + 1} fails: {one_line(error)}; correct it there") from error
    if not batches:
        raise AdviceError("loader: it is empty; give one with at least one batch, better twelve")
    return batches, seconds[1:]


def parts_of(model: nn.Module) -> set[tuple[str, int]]:
    """Names and identities of all modules and parameters."""
    return {(name, id(part)) for name, part in (*model.named_modules(), *model.named_parameters())}
