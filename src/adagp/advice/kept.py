"""Keeps a model and its optimizer bit for bit as they were, whatever is measured on them.

Options are measured on the user's own model, because a closure knows no other: a copy would not be what it calls.
"""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer

from adagp.advice.errors import AdviceError

_Restore = Callable[[], None]


class Snapshot:
    """Everything reachable from some objects through modules, optimizers, dicts, lists and sets, and its tensors.

    The same objects are there after `restore`, with the same content: a tensor keeps its memory and its layout.
    """

    def __init__(self, *roots: object) -> None:
        """Copy now; nothing is changed."""
        self._seen: dict[int, object] = {}  # holds what it has seen, so that no id is used twice
        self._restores: list[_Restore] = []
        for root in roots:
            self._visit(root)

    def restore(self) -> None:
        """Put everything back."""
        for restore in self._restores:
            restore()

    def _visit(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._restores.append(_tensor(value))
            if value.is_leaf and value.grad is not None:
                self._visit(value.grad)
        elif isinstance(value, torch.Generator):
            self._restores.append(_generator(value))
        elif isinstance(value, nn.Module | Optimizer):
            self._visit(value.__dict__)
        elif isinstance(value, dict):
            self._restores.append(_content(value, dict(value)))
            for key, part in value.items():
                self._visit(key)
                self._visit(part)
        elif isinstance(value, list | deque | set):
            self._restores.append(_content(value, list(value)))
            for part in value:
                self._visit(part)
        elif isinstance(value, tuple):
            for part in value:
                self._visit(part)


def _tensor(value: Tensor) -> _Restore:
    if isinstance(value, UninitializedParameter | UninitializedBuffer):
        raise AdviceError(
            "model: a parameter has no shape yet, so its first batch would change the model: run one batch, build the "
            "optimizer after it, then ask again"
        )
    memory, content, needs_grad = value.data, value.detach().clone(), value.requires_grad
    grad = value.grad if value.is_leaf else None

    def restore() -> None:
        with torch.no_grad():
            value.data = memory
            value.data.copy_(content)
        if value.is_leaf:
            value.grad = grad
            if value.requires_grad is not needs_grad:
                value.requires_grad_(needs_grad)

    return restore


def _generator(value: torch.Generator) -> _Restore:
    state = value.get_state()

    def restore() -> None:
        value.set_state(state)

    return restore


def _content(container: Any, kept: Any) -> _Restore:
    def restore() -> None:
        container.clear()
        container.extend(kept) if isinstance(container, list | deque) else container.update(kept)

    return restore


@contextmanager
def unchanged(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Inside, anything may be done to a model and its optimizer; afterwards they and all random states are as before.

    What a closure changes elsewhere, such as the place in a loader, is not put back.
    """
    snapshot = Snapshot(model, optimizer)
    python, numpy = random.getstate(), sys.modules.get("numpy")
    state = None if numpy is None else numpy.random.get_state()
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            snapshot.restore()
            torch.set_num_threads(threads)
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(state)
