"""What the ranks of a batch tell each other, so that all of them hold the same gradients.

Everything goes in one message, which may travel while the backward runs. Its size must be the same on every rank, also
where a layer did not run on one of them: each part has its place, filled with zeros where there is nothing. With one
rank nothing is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from adagp._engine.layer_batch import LayerBatch
from adagp._engine.setup import Setup
from adagp.predictors import Features
from adagp.schedules import Trial

Key = tuple[str, str]
"""The layer and what of it a part of the message is; the layer's name is empty where all layers share the part."""


@dataclass(frozen=True)
class Findings:
    """What the passes of a batch showed, on one rank or over all of them.

    Attributes:
        loss_is_finite: Whether the loss is.
        lacks_loss_grad: Whether the gradient of the loss at the model's output is missing where it was asked for.
        loss_grad: That gradient.
        row_sums: Sums over the rows that a rank holds, where each holds others.
    """

    loss_is_finite: bool = True
    lacks_loss_grad: bool = False
    loss_grad: Tensor | None = None
    row_sums: tuple[float, ...] = ()


@dataclass(frozen=True)
class Shared:
    """The same, and what all ranks know of the layers now.

    Attributes:
        findings: What any rank found; the gradient of the loss is the mean.
        features: The mean features of each layer that ran.
        samples: How many samples went through each layer whose source wants to know, over all micro-batches.
    """

    findings: Findings
    features: dict[str, Features]
    samples: dict[str, int]


class Exchange:
    """Shares what a batch showed; gradients that no reducer has seen are averaged in place."""

    def __init__(
        self,
        setup: Setup,
        layers: Sequence[LayerBatch],
        own: Findings,
        unshared: Sequence[nn.Parameter] = (),
        with_features: bool = True,
    ) -> None:
        """Send the message; other work may be done until `result` is asked for.

        Args:
            setup: The set-up.
            layers: The layers of the batch.
            own: What this rank found.
            unshared: The parameters with such gradients.
            with_features: Whether anything still uses the features.
        """
        self._layers, self._own, self._replicas = layers, own, setup.ranks.replicas
        self._asking = [entry for entry in layers if entry.spec.needs_forward]
        self._samples = [sum(entry.samples) for entry in self._asking]
        self._parts = _feature_parts(setup, layers, own.loss_grad) if with_features else {}
        self._message: _Message | None = None
        if setup.ranks.count > 1:
            events = [not own.loss_is_finite, own.lacks_loss_grad]
            self._message = _Message(setup, layers, self._parts, unshared, events, self._samples, own.row_sums)

    def result(self) -> Shared:
        """What all ranks know now.

        Raises:
            RuntimeError: When a layer ran on some ranks only: those alone would learn from it, or drop it.
        """
        findings, samples, parts = self._own, self._samples, self._parts
        if self._message is not None:
            (failures, lacking), samples, sums = self._message.receive()
            row_sums = tuple(number / self._replicas for number in sums)
            findings = Findings(not failures, bool(lacking), findings.loss_grad, row_sums)
            if not lacking:
                parts = self._message.means()
        if not parts:
            findings = findings if findings.loss_grad is None else replace(findings, loss_grad=None)
            return Shared(findings, {}, _by_name(self._asking, samples))
        loss_grad = parts.get(_LOSS_GRAD)
        return Shared(
            replace(findings, loss_grad=loss_grad),
            _features(self._layers, parts, loss_grad),
            _by_name(self._asking, samples),
        )


def _by_name(layers: Sequence[LayerBatch], values: Sequence[int]) -> dict[str, int]:
    return {entry.layer.name: value for entry, value in zip(layers, values, strict=True)}


_LOSS_GRAD: Key = ("", "loss_grad")


def _feature_parts(setup: Setup, layers: Sequence[LayerBatch], loss_grad: Tensor | None) -> dict[Key, Tensor | None]:
    """What the predictor asked for; the keys are the same on all ranks."""
    needs = setup.needs
    asked = {"output": needs.output, "input": needs.input, "weighted_input": needs.weighted_input}
    parts: dict[Key, Tensor | None] = {_LOSS_GRAD: loss_grad} if needs.loss_grad else {}
    for entry in layers:
        if entry.uses_features:  # a rank that is compiled records more layers than another
            features = entry.features() or Features()
            parts |= {(entry.layer.name, part): getattr(features, part) for part, wanted in asked.items() if wanted}
    return parts


def _features(
    layers: Sequence[LayerBatch], parts: dict[Key, Tensor | None], loss_grad: Tensor | None
) -> dict[str, Features]:
    found = {}
    for entry in layers:
        name = entry.layer.name
        own = {part: parts.get((name, part)) for part in ("output", "input", "weighted_input")}
        if any(part is not None for part in own.values()):
            found[name] = Features(loss_grad=loss_grad, **own)
    return found


class _Message:
    """One message: counts of what happened, and parts that are averaged."""

    def __init__(
        self,
        setup: Setup,
        layers: Sequence[LayerBatch],
        parts: dict[Key, Tensor | None],
        unshared: Sequence[nn.Parameter],
        events: Sequence[bool],
        samples: Sequence[int],
        row_sums: Sequence[float],
    ) -> None:
        """Send everything whose shape all ranks know.

        Args:
            setup: The set-up.
            layers: The layers of the batch.
            parts: What the predictor asked for.
            unshared: The parameters whose gradients are averaged here.
            events: Whether each of some things happened.
            samples: The samples of each layer that wants to know.
            row_sums: Sums over the rows of this rank.
        """
        self._ranks, self._device = setup.ranks, setup.device
        self._layers, self._parts, self._unshared = layers, parts, unshared
        self._fixed = _fixed_shapes(setup, layers)
        self._known = {key: shape for key in parts if (shape := self._shape(key)) is not None}
        self._present: dict[Key, int] = {}
        self._sums: dict[Key, Tensor] = {}
        has_new = any(part is not None and part.shape != self._known.get(key) for key, part in parts.items())
        counts = [
            [has_new],
            events,
            samples,
            [entry.has_run for entry in self._layers],
            [part is not None for part in parts.values()],
            [parameter.grad is not None for parameter in unshared],
        ]
        numbers = torch.tensor([float(one) for part in (*counts, row_sums) for one in part], device=self._device)
        self._grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in unshared]
        filled = [self._filled(key, shape) for key, shape in self._known.items()]
        self._lengths = [len(part) for part in counts]
        self._pending = self._ranks.start_sum([numbers, *filled, *self._grads])

    def receive(self) -> tuple[list[int], list[int], list[float]]:
        """The sums of all three that were sent."""
        total, *sums = self._pending.wait()
        values = iter(total.tolist())
        (new,), failures, samples, ran, present, reached = (
            [int(next(values)) for _ in range(length)] for length in self._lengths
        )
        self._has_new = new > 0
        self._present = dict(zip(self._parts, present, strict=True))
        self._refuse_differences(ran)
        count = len(self._known)
        self._sums = dict(zip(self._known, sums[:count], strict=True))
        for parameter, grad, sum_, ranks in zip(self._unshared, self._grads, sums[count:], reached, strict=True):
            if ranks:
                parameter.grad = grad.copy_(sum_.div_(self._ranks.count))
        return failures, samples, list(values)

    def means(self) -> dict[Key, Tensor | None]:
        """The mean of each part over all ranks; None where no rank has it."""
        for (name, what), ranks in self._present.items():
            if 0 < ranks < self._ranks.count:
                raise RuntimeError(
                    f"layer {name!r} showed its {what} on {ranks} of {self._ranks.count} ranks in this batch: let it "
                    "run in the same way everywhere, or exclude it"
                )
        if self._has_new:
            self._send_new()
        return {key: self._sums[key].div_(self._ranks.count) if self._present[key] else None for key in self._parts}

    def _send_new(self) -> None:
        """Send what has a shape that was not agreed on before, in two more messages, and agree on it."""
        own = {key: part for key, part in self._parts.items() if part is not None and key not in self._fixed}
        self._refuse_shapes(own)
        self._sums |= zip(own, self._ranks.sum(list(own.values())), strict=True)
        self._ranks.agreed_shapes.update({key: part.shape for key, part in own.items()})

    def _shape(self, key: Key) -> torch.Size | None:
        return self._fixed.get(key, self._ranks.agreed_shapes.get(key))

    def _filled(self, key: Key, shape: torch.Size) -> Tensor:
        part = self._parts[key]
        return part if part is not None and part.shape == shape else torch.zeros(shape, device=self._device)

    def _refuse_differences(self, ran: Sequence[int]) -> None:
        count = self._ranks.count
        for entry, ranks in zip(self._layers, ran, strict=True):
            if 0 < ranks < count:
                raise RuntimeError(
                    f"layer {entry.layer.name!r} ran on {ranks} of {count} ranks in this batch, and all must do the "
                    "same with it: exclude it, or let it run everywhere"
                )

    def _refuse_shapes(self, own: dict[Key, Tensor]) -> None:
        """Messages of unlike size would hang, or mix what does not belong together."""
        sizes = [part.numel() for part in own.values()]
        largest = self._ranks.largest([*sizes, *(-size for size in sizes)], self._device)
        for (name, what), most, least in zip(own, largest[: len(sizes)], largest[len(sizes) :], strict=True):
            if most != -least:
                where = f"layer {name!r}" if name else "the model"
                raise RuntimeError(
                    f"{where}: its {what} has {-least} entries on one rank and {most} on another, and ranks average "
                    "what the predictor asked for: let it have one size on all ranks"
                )


def _fixed_shapes(setup: Setup, layers: Sequence[LayerBatch]) -> dict[Key, torch.Size]:
    """The shapes that are known before anything ran."""
    output = setup.needs.output
    if output is None:
        return {}
    return {(entry.layer.name, "output"): torch.Size((entry.layer.out, output.grid**2)) for entry in layers}


def average_trials(setup: Setup, trials: Mapping[str, Trial]) -> dict[str, Trial]:
    """What was tried, as the mean over all ranks, so that all of them decide the same."""
    if setup.ranks.count == 1:
        return dict(trials)

    def numbers(trial: Trial) -> list[float]:
        spread = [] if trial.spread is None else [trial.spread]
        return [trial.other_seconds, trial.exact_seconds, *trial.seconds.values(), *trial.added.values(), *spread]

    own = [torch.tensor(numbers(trial), dtype=torch.float32, device=setup.device) for trial in trials.values()]
    averaged: dict[str, Trial] = {}
    for (name, trial), mean in zip(trials.items(), setup.ranks.average(own), strict=True):
        other, exact, *rest = mean.tolist()
        rates = list(trial.seconds)
        spread = None if trial.spread is None else rest[-1]
        seconds, added = rest[: len(rates)], rest[len(rates) : 2 * len(rates)]
        averaged[name] = Trial(
            other, exact, dict(zip(rates, seconds, strict=True)), dict(zip(rates, added, strict=True)), spread
        )
    return averaged
