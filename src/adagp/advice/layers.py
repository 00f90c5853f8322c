"""The seconds of each layer: forward, input gradient, weight gradient, and the sources that stand in for the latter."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from adagp.advice.rounds import SHORTEST, Clock
from adagp.advice.subject import Subject
from adagp.layers import Layer
from adagp.sources import Source

MOST_REPEATS = 30


@dataclass
class LayerTimes:
    """Median seconds of one layer, measured by itself on random input of the shapes that the model gives it.

    Attributes:
        name: Its name.
        kind: Its class.
        forward: Seconds of its output.
        input_gradient: Seconds of the gradient of its input; 0 where nothing before it needs one.
        weight_gradient: Seconds of the exact weight gradient.
        sources: Seconds of the same by each source that computes it from `grad_output`.
    """

    name: str
    kind: str
    forward: float
    input_gradient: float
    weight_gradient: float
    sources: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """All three exact parts."""
        return self.forward + self.input_gradient + self.weight_gradient


@dataclass(frozen=True)
class _Shape:
    """What is needed to make another input like the one a layer was given, and the precision it computes in."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    needs_grad: bool
    autocast: torch.dtype | None

    def make(self) -> Tensor:
        """Random numbers of this shape and layout."""
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device).normal_()
        return made.requires_grad_(True)

    def precision(self) -> torch.autocast:
        """Autocast as it was where the layer was called."""
        return torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None)


def layer_times(
    subject: Subject,
    layers: Sequence[Layer],
    sources: dict[str, Source],
    clock: Clock,
    is_over: Callable[[], bool],
) -> list[LayerTimes]:
    """Measure the layers in turn, again and again; those given something else than one tensor are left out.

    Args:
        subject: Gives one forward, in which the shapes are noted.
        layers: The layers.
        sources: Those that compute a weight gradient from `grad_output`.
        clock: In seconds.
        is_over: Asked before every turn but the first.
    """
    shapes = _shapes(subject, layers)
    known = [layer for layer in layers if layer.name in shapes]
    found: dict[str, list[LayerTimes]] = {layer.name: [] for layer in known}
    for turn in range(MOST_REPEATS + 1):
        for layer in known:
            if turn > 1 and is_over():
                break
            times = _time(layer, shapes[layer.name], sources, clock)
            if turn:  # the first turn warms up
                found[layer.name].append(times)
    return [_median(times) for times in found.values()]


def _shapes(subject: Subject, layers: Sequence[Layer]) -> dict[str, _Shape]:
    shapes: dict[str, _Shape] = {}

    def note(name: str, inputs: tuple[Any, ...]) -> None:
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and inputs[0].is_floating_point():
            one, kind = inputs[0], inputs[0].device.type
            autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            shapes[name] = _Shape(tuple(one.shape), one.stride(), one.dtype, one.device, one.requires_grad, autocast)

    hooks = [
        layer.module.register_forward_pre_hook(lambda _, inputs, name=layer.name: note(name, inputs))
        for layer in layers
    ]
    try:
        subject.loss_of()
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _time(layer: Layer, shape: _Shape, sources: dict[str, Source], clock: Clock) -> LayerTimes:
    given = shape.make()
    outputs: list[Tensor] = []
    with shape.precision():
        forward = _seconds(clock, lambda: outputs.append(layer.module.forward(given)))
    (output,) = outputs
    grad_output = torch.randn_like(output)
    weight = _seconds(clock, lambda: torch.autograd.grad(output, layer.weight, grad_output, retain_graph=True))
    inputs = 0.0
    if shape.needs_grad:
        inputs = _seconds(clock, lambda: torch.autograd.grad(output, given, grad_output, retain_graph=True))
    times = LayerTimes(layer.name, type(layer.module).__name__, forward, inputs, weight)
    with torch.no_grad(), _own_grad(layer):
        for name, source in sources.items():
            if not source.refuse(layer):
                times.sources[name] = _seconds(clock, partial(source.receive, layer, given.detach(), grad_output))
    return times


@contextmanager
def _own_grad(layer: Layer) -> Iterator[None]:
    """Inside, the layer's gradients may be written; they are None afterwards."""
    try:
        yield
    finally:
        for parameter in layer.parameters():
            parameter.grad = None


def _seconds(clock: Clock, work: Callable[[], object]) -> float:
    start = clock()
    work()
    return max(clock() - start, SHORTEST)


def _median(times: Sequence[LayerTimes]) -> LayerTimes:
    first = times[0]
    return LayerTimes(
        first.name,
        first.kind,
        median(one.forward for one in times),
        median(one.input_gradient for one in times),
        median(one.weight_gradient for one in times),
        {name: median(one.sources[name] for one in times) for name in first.sources},
    )
