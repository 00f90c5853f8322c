"""Options that leave the mathematics as it is: memory layout, optimizer implementation, threads, compilation."""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adagp.advice.subject import Subject, is_image
from adagp.measure import cpu_threads

CHANNELS_LAST = "channels-last"
FUSED = "fused optimizer"
FOREACH = "foreach optimizer"


@dataclass(frozen=True)
class ExactOption:
    """A setting that changes seconds or bytes, and the result by rounding only.

    Attributes:
        name: Its name.
        code: The lines to write.
        ready: Puts it in force on the subject.
        excludes: Options that cannot be combined with it.
    """

    name: str
    code: tuple[str, ...]
    ready: Callable[[], AbstractContextManager[object]]
    excludes: frozenset[str] = frozenset()


def exact_options(subject: Subject) -> list[ExactOption]:
    """Every option that this model, optimizer and machine have and do not use yet, the most promising first."""
    return [*_layouts(subject), *_threads(subject), *_optimizers(subject)]


# --- memory layout


def _layouts(subject: Subject) -> Iterator[ExactOption]:
    weights = [parameter for parameter in subject.model.parameters() if parameter.dim() == 4]
    lasting = torch.channels_last
    if not weights or all(weight.is_contiguous(memory_format=lasting) for weight in weights):
        return
    code = (
        "model = model.to(memory_format=torch.channels_last)",
        "x = x.to(memory_format=torch.channels_last)",
    )
    yield ExactOption(CHANNELS_LAST, code, _ChannelsLast(subject).in_force)


class _ChannelsLast:
    """Twins of the weights and of the optimizer's state in channels-last order, exchanged without a copy."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._twins: list[tuple[nn.Parameter, Tensor, dict[str, Any]]] | None = None

    def _build(self) -> list[tuple[nn.Parameter, Tensor, dict[str, Any]]]:
        state = self._subject.optimizer.state
        return [
            (weight, _last(weight.data), {key: _last(value) for key, value in state.get(weight, {}).items()})
            for weight in self._subject.model.parameters()
            if weight.dim() == 4
        ]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        if self._twins is None:
            self._twins = self._build()
        state = self._subject.optimizer.state
        kept = [(weight, weight.data, state.get(weight)) for weight, _, _ in self._twins]
        for weight, twin, own_state in self._twins:
            weight.grad = None
            weight.data = twin
            if own_state:
                state[weight] = own_state
        hook = self._subject.model.register_forward_pre_hook(_images_last, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
            for weight, data, before in kept:
                weight.grad = None
                weight.data = data
                if before is not None:
                    state[weight] = before


def _last(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(memory_format=torch.channels_last, copy=True) if value.dim() == 4 else value.clone()
    return value


def _images_last(
    _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def last(value: Any) -> Any:
        return value.contiguous(memory_format=torch.channels_last) if is_image(value) else value

    return tuple(map(last, inputs)), {name: last(value) for name, value in named.items()}


# --- implementation of the optimizer


def _optimizers(subject: Subject) -> Iterator[ExactOption]:
    optimizer = subject.optimizer
    for name, flag in ((FUSED, "fused"), (FOREACH, "foreach")):
        groups = optimizer.param_groups
        if all(flag in group and not group[flag] and not group.get("differentiable") for group in groups):
            others = frozenset({FUSED, FOREACH} - {name})
            yield ExactOption(name, (_constructor(subject, flag),), partial(_flagged, subject, flag), others)


def _constructor(subject: Subject, flag: str) -> str:
    """The line that builds this optimizer with a flag: as one writes it, or from its groups where there are several."""
    optimizer, kind = subject.optimizer, type(subject.optimizer)
    name = f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.optim.") else kind.__name__
    groups, (other,) = optimizer.param_groups, {"fused", "foreach"} - {flag}
    if len(groups) > 1 or list(map(id, groups[0]["params"])) != list(map(id, subject.model.parameters())):
        changed = f'{{**group, "{other}": None, "{flag}": True}}'
        return f"optimizer = {name}([{changed} for group in optimizer.param_groups])"
    usual = {one.name: one.default for one in inspect.signature(kind).parameters.values()}
    given = {key: value for key, value in optimizer.defaults.items() if key in usual.keys() - {flag, other}}
    words = [f"{key}={value!r}" for key, value in given.items() if key == "lr" or value != usual[key]]
    return f"optimizer = {name}({', '.join(['model.parameters()', *words, f'{flag}=True'])})"


@contextmanager
def _flagged(subject: Subject, flag: str) -> Iterator[None]:
    groups = subject.optimizer.param_groups
    before = [(group.get("fused"), group.get("foreach")) for group in groups]
    for group in groups:
        for name in ("fused", "foreach"):
            if name in group:
                group[name] = name == flag
    try:
        yield
    finally:
        for group, (fused, foreach) in zip(groups, before, strict=True):
            for name, value in (("fused", fused), ("foreach", foreach)):
                if name in group:
                    group[name] = value


# --- threads


def available_cpus() -> int:
    """The CPUs that this process may use, shared with the other ranks on this machine under torchrun."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)


def _threads(subject: Subject) -> Iterator[ExactOption]:
    if subject.device.type != "cpu":
        return
    all_cpus, now = available_cpus(), torch.get_num_threads()
    names = frozenset(map(_threads_name, range(1, all_cpus + 1)))
    for count in sorted({1, max(all_cpus // 2, 1), all_cpus} - {now}, reverse=True):
        name = _threads_name(count)
        yield ExactOption(name, (f"torch.set_num_threads({count})",), partial(cpu_threads, count), names - {name})


def _threads_name(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
