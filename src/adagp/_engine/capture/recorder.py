"""Records what the passes of a batch show to the predictor: only what it asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from adagp._engine.capture.grad_output import Deliver, deliver_grad_output
from adagp._engine.capture.pooling import BatchSum, Pooler
from adagp._engine.layer_batch import LayerBatch
from adagp.layers import Layer
from adagp.predictors import FeatureSpec

_SUMS_SHARE = 1 / 16
"""Memory that sums may take before they are pooled, as a share of the largest tensor so far."""

Result = TypeVar("Result")
Timed = Callable[[Callable[[], Result]], Result]
"""Does the predictor's work on its clock."""


@dataclass(frozen=True)
class Poolers:
    """How a predictor wants outputs and inputs to be pooled; None where it does not."""

    output: Pooler | None = None
    input: Pooler | None = None

    @staticmethod
    def of(needs: FeatureSpec) -> "Poolers":
        """The poolers of what a predictor needs."""
        return Poolers(
            output=None if needs.output is None else Pooler(needs.output, Layer.reorganise),
            input=None if needs.input is None else Pooler(needs.input, Layer.reorganise_input),
        )


class _Queue:
    """Sums tensors in the forward hooks of a batch, one by one, and pools several sums at once."""

    def __init__(self, pooler: Pooler, pools_at_once: bool) -> None:
        self._pooler, self._pools_at_once = pooler, pools_at_once
        self._sums: list[tuple[Layer, BatchSum]] = []
        self._homes: list[list[Tensor]] = []
        self._bytes = self._largest = 0

    def add(self, layer: Layer, tensor: Tensor, home: list[Tensor]) -> None:
        """Sum a tensor, and pool the sums so far where they would take noticeable memory; `home` gets the result."""
        batch_sum = self._pooler.sum_samples(layer, tensor)
        if torch.compiler.is_compiling():  # it arranges the work itself
            self._append(layer, batch_sum, home)
            self.flush()
            return
        self._largest = max(self._largest, tensor.nbytes)
        if self._bytes + batch_sum.nbytes > self._largest * _SUMS_SHARE:
            self.flush()
        self._append(layer, batch_sum, home)
        self._bytes += batch_sum.nbytes
        if self._pools_at_once or not batch_sum.is_copy or self._bytes > self._largest * _SUMS_SHARE:
            self.flush()

    def _append(self, layer: Layer, batch_sum: BatchSum, home: list[Tensor]) -> None:
        self._sums.append((layer, batch_sum))
        self._homes.append(home)

    def flush(self) -> None:
        """Pool what is waiting."""
        if not self._sums:
            return
        for home, pooled in zip(self._homes, self._pooler.pool(self._sums), strict=True):
            home.append(pooled)
        self._sums, self._homes, self._bytes = [], [], 0

    def end_forward(self) -> None:
        """Pool what is left."""
        self.flush()
        self._largest = 0


@dataclass
class _ModelCall:
    """One call of the model: the inputs of its layers by sample, and the gradient of the loss at its output."""

    inputs: list[tuple[LayerBatch, Tensor]] = field(default_factory=list)
    leaf: Tensor | None = None
    """The output in GP, where the graph begins: it reaches from here to the loss."""
    loss_grad: Tensor | None = None


class Recorder:
    """Records the features of one batch."""

    def __init__(self, needs: FeatureSpec, poolers: Poolers, pools_at_once: bool, timed: Timed[Any] | None) -> None:
        """Nothing is recorded before the first forward.

        Args:
            needs: What the predictor asked for.
            poolers: How it wants tensors to be pooled.
            pools_at_once: Whether features are needed while the forward is still running.
            timed: Does the predictor's work on its clock; None without one.
        """
        self._needs, self._timed = needs, timed
        self._outputs = None if poolers.output is None else _Queue(poolers.output, pools_at_once)
        self._inputs = None if poolers.input is None else _Queue(poolers.input, pools_at_once)
        self._calls: list[_ModelCall] = []

    def _clocked(self, work: Callable[[], Result]) -> Result:
        return work() if self._timed is None else self._timed(work)

    def record(self, entry: LayerBatch, layer_input: Any, output: Tensor) -> None:
        """Record one call of a layer."""
        if self._timed is None:  # between two large layers every call is slow
            self._record(entry, layer_input, output)
        else:
            self._timed(partial(self._record, entry, layer_input, output))

    def _record(self, entry: LayerBatch, layer_input: Any, output: Tensor) -> None:
        layer = entry.layer
        if self._outputs is not None:
            self._outputs.add(layer, output, entry.outputs)
        if self._inputs is not None:
            self._inputs.add(layer, _tensor(layer, layer_input), entry.inputs)
        if self._needs.weighted_input and self._calls:
            samples = layer.kind.sample_inputs(layer.module, _tensor(layer, layer_input).detach())
            self._calls[-1].inputs.append((entry, samples.float()))

    def begin_model_call(self) -> None:
        """Keep the inputs of this call's layers together."""
        self._calls.append(_ModelCall())

    def end_model_call(self, output: Any, has_graph: bool) -> Tensor:
        """Take the model's output; what is returned stands in for it, so that the loss's gradient arrives here."""
        if not isinstance(output, Tensor):
            raise TypeError(
                f"the model returned {type(output).__name__}, not a tensor, and the predictor asks for the gradient of "
                "the loss at its output: return one tensor, or use another predictor"
            )
        call = self._calls[-1]
        if has_graph:

            def arrived(_: tuple[Tensor, ...], grad_output: Tensor) -> None:
                call.loss_grad = grad_output.float()

            return watched_output(output, arrived)
        call.leaf = output.detach().requires_grad_()
        return call.leaf

    def differentiate(self, loss: Tensor) -> None:
        """In GP: find the gradient of a loss at the model's outputs, through the graph of the loss alone."""
        self._clocked(partial(self._differentiate, loss))

    def _differentiate(self, loss: Tensor) -> None:
        calls = [call for call in self._calls if call.leaf is not None]
        leaves = [call.leaf for call in calls if call.leaf is not None]
        if leaves and loss.requires_grad:
            grads = torch.autograd.grad(loss, leaves, allow_unused=True)
            for call, grad in zip(calls, grads, strict=True):
                call.loss_grad = None if grad is None else grad.float()
        for call in calls:
            call.leaf = None

    def end_forward(self) -> None:
        """Say that the forward of a micro-batch is over."""
        self._clocked(self._end_forward)

    def _end_forward(self) -> None:
        for queue in (self._outputs, self._inputs):
            if queue is not None:
                queue.end_forward()

    def weigh_inputs(self, grad_scale: float) -> Tensor | None:
        """Weigh the inputs by the gradient of the loss at the model's output, and return it: `(model outputs,)`.

        Args:
            grad_scale: The factor by which a GradScaler multiplied the loss.
        """
        found: Tensor | None = self._clocked(partial(self._weigh_inputs, grad_scale))
        for call in self._calls:  # an output that the user keeps would keep them alive
            call.inputs.clear()
            call.loss_grad = None
        self._calls.clear()
        return found

    def _weigh_inputs(self, grad_scale: float) -> Tensor | None:
        total: Tensor | None = None
        for call in self._calls:
            if call.loss_grad is None:
                continue
            by_sample = _by_sample(call.loss_grad / grad_scale)
            total = by_sample.sum(0) if total is None else total + by_sample.sum(0)
            for entry, samples in call.inputs:
                if len(samples) != len(by_sample):
                    raise ValueError(
                        f"layer {entry.layer.name!r} had {len(samples)} samples where the model's output has "
                        f"{len(by_sample)}, so they cannot be weighted by its gradient: exclude the layer"
                    )
                entry.weighted_inputs.append(by_sample.t() @ samples)
        return total


def watched_output(output: Tensor, arrived: Deliver) -> Tensor:
    """The model's output, with a call when the gradient arrives at it.

    A copy, because the model's last operation may need its output as it is in backward.
    """
    return deliver_grad_output(output.clone(), output.new_empty(0), arrived)


def _by_sample(grad: Tensor) -> Tensor:
    """The gradient at the model's output as `(samples, outputs)`, summed over positions.

    Outputs come last, as classes and tokens do, or second where there are two axes of positions, as for maps.
    """
    if grad.dim() == 0:
        raise ValueError(
            "the model's output is one number, and the predictor asks for the loss's gradient by samples: let the "
            "model return its outputs, and compute the loss from them"
        )
    if grad.dim() == 1:
        return grad[:, None]
    if grad.dim() == 2:
        return grad
    return grad.flatten(1, -2).sum(1) if grad.dim() == 3 else grad.flatten(2).sum(2)


def _tensor(layer: Layer, layer_input: Any) -> Tensor:
    if not isinstance(layer_input, Tensor):
        raise TypeError(
            f"layer {layer.name!r} was called without a tensor as its first input, and the predictor asks for it: "
            "exclude the layer"
        )
    return layer_input
