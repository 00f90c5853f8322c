"""`torch.compile` as an option: exact up to rounding, and slow to start."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from adagp.advice.exact import ExactOption
from adagp.advice.subject import Subject

COMPILE = "torch.compile"


def is_compiled(model: nn.Module) -> bool:
    """Whether the user has compiled a model, or a part of it, by `torch.compile` or in place."""
    return any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in model.modules())


def compile_option(subject: Subject) -> ExactOption:
    """The model compiled in place; its first batch compiles it, which may take a minute or more."""
    return ExactOption(COMPILE, ("model.compile()",), _Compiled(subject).in_force)


class _Compiled:
    """The compiled call, kept from turn to turn."""

    def __init__(self, subject: Subject) -> None:
        self._model = subject.model
        self._call: Callable[..., Any] | None = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        before = self._model._compiled_call_impl
        if self._call is None:
            self._model.compile()
            self._call = self._model._compiled_call_impl
        self._model._compiled_call_impl = self._call
        try:
            yield
        finally:
            self._model._compiled_call_impl = before
