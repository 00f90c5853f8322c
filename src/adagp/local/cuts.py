"""Where a network can be cut: at a module whose output is all that what follows knows of what went before.

One forward is traced with its autograd graph, but without the tensors that a backward would need, so that it takes no
more memory than inference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

Macs = Callable[[str, nn.Module, Tensor], int]
"""Multiply-adds of one call of a module, by its name and its output."""


@dataclass(frozen=True)
class Call:
    """One call of a module in a traced forward.

    Attributes:
        module: Its name.
        kind: The type of what it returned.
        shape: The shape of its output, without the batch; None unless it returned one tensor.
        node: Where its output stands in the graph; None if no gradient reaches it.
        macs: Multiply-adds up to its end, from the beginning of the forward.
        memory: Bytes that the graph keeps for a backward up to its end, weights apart.
    """

    module: str
    kind: str
    shape: tuple[int, ...] | None
    node: Node | None
    macs: int
    memory: int


@dataclass(frozen=True)
class Trace:
    """A traced forward.

    Attributes:
        calls: Every call of a module, in the order in which they ended.
        output: The shape of the model's output, without the batch; None unless it returned one tensor.
        ends: Where the model's outputs stand in the graph.
        parameters: The names of the parameters.
    """

    calls: tuple[Call, ...]
    output: tuple[int, ...] | None
    ends: tuple[Node, ...]
    parameters: Mapping[Tensor, str]

    def calls_of(self, module: str) -> list[Call]:
        """The calls of one module."""
        return [call for call in self.calls if call.module == module]

    def parameters_before(self, cut: str) -> frozenset[str]:
        """The trained parameters that the output of a cut depends on."""
        (call,) = self.calls_of(cut)
        return frozenset() if call.node is None else self._leaves(_reach([call.node]))

    def _leaves(self, nodes: set[Node]) -> frozenset[str]:
        variables = [getattr(node, "variable", None) for node in nodes]
        return frozenset(
            self.parameters[variable] for variable in variables if variable is not None and variable in self.parameters
        )

    def refuse(self, cut: str) -> str:
        """Why the network cannot be cut at a module; empty where it can."""
        found = self.calls_of(cut)
        if len(found) != 1:
            times = "is not called in the forward" if not found else f"is called {len(found)} times in one forward"
            return f"it {times}"
        (call,) = found
        if call.shape is None:
            return f"it returns {call.kind}, not one tensor"
        if call.node is None:
            return "no trained parameter stands before it, or it runs without grad mode, as inside a checkpoint"
        before, after = _reach([call.node]), _reach(self.ends, stop=call.node)
        both = before & (after - {call.node})
        shared = sorted(self._leaves(both))
        if any(not hasattr(node, "variable") for node in both):
            return "its output is not the only thing that crosses: a tensor from before it is used after it too"
        if shared:
            return f"parameter {shared[0]!r} is used on both sides of it"
        if not self._leaves(after):
            return "no trained parameter stands after it"
        return ""


def trace(model: nn.Module, call: Callable[[], Any], macs: Macs) -> Trace:
    """Run a model once and note what its modules return; the model, its buffers and random states stay as they are.

    Args:
        model: The model.
        call: Runs its forward.
        macs: Counts the multiply-adds of a module's call; 0 for one that is not counted.
    """
    calls: list[Call] = []
    total = memory = 0
    weights = {StorageWeakRef(parameter.untyped_storage()) for parameter in model.parameters()}
    seen: set[StorageWeakRef] = set()

    def keep_nothing(tensor: Tensor) -> None:
        nonlocal memory
        storage = StorageWeakRef(tensor.untyped_storage())
        if storage not in seen and storage not in weights:
            seen.add(storage)
            memory += tensor.nbytes

    def note(name: str, module: nn.Module, output: Any) -> None:
        nonlocal total
        is_tensor = isinstance(output, Tensor)
        total += macs(name, module, output) if is_tensor else 0
        shape = tuple(output.shape[1:]) if is_tensor and output.dim() > 1 else None
        node = output.grad_fn if is_tensor else None
        calls.append(Call(name, type(output).__name__, shape, node, total, memory))

    hooks = [
        module.register_forward_hook(lambda one, inputs, output, name=name: note(name, one, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        with _untouched(model), torch.enable_grad(), saved_tensors_hooks(keep_nothing, lambda kept: kept):
            output = call()
    finally:
        for hook in hooks:
            hook.remove()
    ends = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    shape = tuple(output.shape[1:]) if isinstance(output, Tensor) and output.dim() > 1 else None
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return Trace(tuple(calls), shape, tuple(end for end in ends if end is not None), names)


def choose(found: Trace, parts: int, balance: str = "memory") -> tuple[str, ...]:
    """The modules to cut at so that all parts cost nearly the same.

    Args:
        found: A forward of the network.
        parts: The number of parts.
        balance: What the parts are to have in equal amounts: `memory` (what their graphs keep), or `macs`.

    Raises:
        ValueError: When the network has too few places to cut.
    """
    cost: Callable[[Call], int] = attrgetter(balance)
    whole = cost(found.calls[-1]) if found.calls else 0
    cuts: list[Call] = []
    for part in range(1, parts):
        wanted, begin = whole * part / parts, cost(cuts[-1]) if cuts else 0
        backwards = reversed(found.calls)  # of equal ones the last, behind the activation
        between = [call for call in backwards if begin < cost(call) < whole and call.shape is not None]
        places = sorted(between, key=lambda call: (abs(cost(call) - wanted), call.module.count(".")))
        best = next((call for call in places if not found.refuse(call.module)), None)
        if best is None:
            raise ValueError(
                f"parts = {parts}: the model has no module that ends part {part} with the one tensor that crosses: use "
                "fewer parts, or name the cuts"
            )
        cuts.append(best)
    return tuple(call.module for call in cuts)


def problems(found: Trace, cuts: Sequence[str]) -> list[str]:
    """Why a network cannot be cut at these modules, each with a remedy."""
    return [f"cut {cut!r}: {reason}; {_remedy(found, cut)}" for cut in cuts if (reason := found.refuse(cut))]


def in_order(found: Trace, cuts: Sequence[str]) -> tuple[str, ...]:
    """The cuts in the order in which the forward passes them."""
    return tuple(call.module for call in found.calls if call.module in cuts)


def _remedy(found: Trace, cut: str) -> str:
    """The nearest module around it that can be cut at, or the next one."""
    around = [cut[:place] for place, letter in enumerate(cut) if letter == "."][::-1]
    later = [call.module for call in found.calls[_place(found, cut) :]]
    good = next((name for name in (*around, *later) if not found.refuse(name)), None)
    return "untie it, or choose other cuts" if good is None else f"cut at {good!r} instead"


def _place(found: Trace, cut: str) -> int:
    return next((place for place, call in enumerate(found.calls) if call.module == cut), 0)


def _reach(ends: Sequence[Node], stop: Node | None = None) -> set[Node]:
    """The nodes of the graph before some ends, those included; `stop` is reached and not passed."""
    seen: set[Node] = set()
    todo = list(ends)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node is not stop:
            todo += [before for before, _ in node.next_functions if before is not None]
    return seen


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Inside, the model may draw numbers and write into its buffers; both are put back."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.clear_autocast_cache()
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
