"""The local losses of one batch: at each cut a head's loss is computed, and its part learns at once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from adagp import local
from adagp._engine.capture.hooks import Current, hook_cuts
from adagp._engine.finite import NonFiniteError, suspects
from adagp._engine.setup import Setup
from adagp.schedules import ResolvedPlan
from adagp.sources import Local
from adagp.sources.local import STAGE_END

_DIVIDED = 1.6
"""How much larger a local loss may be than that of the model before a missing division is suspected."""


class LocalLosses:
    """What a batch with local losses does at the cuts."""

    def __init__(
        self,
        setup: Setup,
        current: Current,
        source: Local,
        step_index: int,
        backward: Callable[[Tensor, Any], None],
        is_scaled: bool,
    ) -> None:
        """Nothing is cut before the model is called.

        Args:
            setup: The set-up.
            current: Where the hooks of the cuts are kept.
            source: Has the heads.
            step_index: The batch's step, for messages.
            backward: Runs the backward of a loss, perhaps in another library's way.
            is_scaled: Whether a GradScaler skips steps that are not finite.
        """
        self._setup, self._current, self._source = setup, current, source
        self._step_index, self._backward, self._is_scaled = step_index, backward, is_scaled
        self._in_force: tuple[str, ...] | None = None
        self._last_loss = 0.0
        self.resolved: ResolvedPlan | None = None
        """The plan of the batch."""
        self.target: Any = None
        """What heads compare their output with; set before each micro-batch."""
        self.by: Any = None
        """Runs the backward of the losses in another library's way; None for our own."""
        self.share = 1.0
        """By what a local loss is multiplied: the part of its batch that a pipeline's micro-batch is."""
        self.has_run = False
        """Whether a part has had its backward."""
        self.losses_are_finite = True
        """Whether every local loss so far is, on this rank."""

    @property
    def is_wanted(self) -> bool:
        """Whether a layer of this batch learns from a local loss."""
        return self.resolved is not None and self.resolved.is_local

    def refuse_uncut(self) -> None:
        """Raise where the batch wanted local losses, and the model's hook was never called."""
        if self.is_wanted and self._in_force is None:
            raise RuntimeError(
                f"no local loss was computed at step {self._step_index}, because the model that AdaGP was attached to "
                "was not called, or its hooks were left out: torch.compile takes the code of an equal model without "
                "them, if it compiled one before: call torch.compiler.reset() between the two"
            )

    @contextmanager
    def unsynchronised(self) -> Iterator[None]:
        """Inside, DistributedDataParallel waits for no gradients: they are averaged when the batch is over."""
        model = self._setup.given_model
        if not isinstance(model, DistributedDataParallel) or not self.is_wanted:
            yield
            return
        with model.no_sync():
            yield
        model.require_forward_param_sync = True  # without it buffers would drift apart from here on

    def on_call(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Find the cuts, in the first batch, and decide which are in force under this plan."""
        if self.resolved is None or not self.resolved.is_local:
            return
        if self._setup.uses_lbfgs:
            raise ValueError(
                "LBFGS evaluates a batch several times, and local losses update heads: use another optimizer"
            )
        if self._source.cuts is None:
            if self._setup.ranks.have_parts:
                raise ValueError(
                    f"the plan of step {self._step_index} asks for local losses, and this stage has no head: build "
                    "Pipeline(schedule, gp, gradients='local')"
                )
            self._find_cuts(inputs, named)
        hook_cuts(self._current, self._setup.model, self._source.cuts or ())
        self._in_force = self._cuts_of(self.resolved)

    def _find_cuts(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        layers = {layer.module: layer for layer in self._setup.layers}

        def macs(name: str, module: nn.Module, output: Tensor) -> int:
            del name
            layer = layers.get(module)
            return 0 if layer is None else output.numel() // layer.out * layer.weight.numel()

        listener, self._current.listener = self._current.listener, None  # this forward is no part of the batch
        try:
            found = local.trace(self._setup.model, lambda: self._setup.model(*inputs, **named), macs)
        finally:
            self._current.listener = listener
        first = self._setup.layers[0].weight
        self._source.prepare(found, first.device, first.dtype, _plain(self._setup.optimizers[0]))

    def _cuts_of(self, resolved: ResolvedPlan) -> tuple[str, ...]:
        """The cuts that end a part with a layer whose source is local."""
        weights = self._setup.weight_names
        found, earlier = [], frozenset[str]()
        for cut in self._source.cuts or ():
            part = self._source.before[cut] - earlier
            if any(task.source.is_local and weights[layer] in part for layer, task in resolved.tasks.items()):
                found.append(cut)
            earlier |= part
        lost = self._source.before[found[-1]] if found else frozenset()
        for layer, task in resolved.tasks.items():
            if task.source.is_true and weights[layer] in lost:
                raise ValueError(
                    f"the plan of step {self._step_index} gives layer {layer!r} backprop, but the gradient of the "
                    f"model's loss does not cross the cut {found[-1]!r} after it: give it local"
                )
        return tuple(found)

    @property
    def cuts_graph(self) -> bool:
        """Whether a part begins without a graph before it."""
        return bool(self._in_force)

    def at_cut(self, cut: str, output: Any, is_repeated: bool) -> Tensor | None:
        """Let the part that ends here learn, and give the next part an input without a graph.

        Args:
            cut: The module's name.
            output: What it returned.
            is_repeated: Whether activation checkpointing runs it a second time.
        """
        if not self.is_wanted:
            return None
        if self._in_force is None:
            raise RuntimeError(
                f"the module of cut {cut!r} ran at step {self._step_index} before the model was called: call the model "
                "itself in the closure"
            )
        if cut not in self._in_force or not isinstance(output, Tensor) or not output.requires_grad:
            return None
        if not is_repeated:
            loss = self._source.loss_at(cut, output, self.target) * self.share
            self._refuse_not_finite(cut, loss)
            self._last_loss = float(loss.detach())
            with torch.autocast(output.device.type, enabled=False):
                self._backward(loss, self.by)
            self.has_run = True
        return output.detach()

    def _refuse_not_finite(self, cut: str, loss: Tensor) -> None:
        """Raise where a local loss is not finite; several ranks first tell each other, when the batch is over."""
        if self._is_scaled or bool(torch.isfinite(loss).all()):
            return
        self.losses_are_finite = False
        if self._setup.ranks.count == 1:
            where = f"at cut {cut!r}" if cut != STAGE_END else "of this stage"
            raise NonFiniteError(
                f"the local loss {where} is not finite at step {self._step_index}: lower the learning rate, "
                "clip gradients, or resume from the last checkpoint"
            )

    def head_parameters(self) -> list[nn.Parameter]:
        """Those of all heads."""
        return self._source.parameters()

    def warn_of_scale(self, loss: Tensor) -> None:
        """Warn where the loss of a micro-batch is divided, as it seems, and local losses are not."""
        if self.has_run and 0 < float(loss.detach()) * _DIVIDED < self._last_loss:
            self._current.warn_once(
                "local scale",
                "step %d has several micro-batches, with a loss of %.3g where a local loss is %.3g: if you divide the "
                "loss by their number, give Local(loss=...) one that is divided too, or its parts learn too fast",
                self._step_index,
                float(loss.detach()),
                self._last_loss,
            )

    def step_heads(self, grad_scale: float) -> bool:
        """Update the heads, unless a gradient is not finite. Returns whether they were updated.

        Args:
            grad_scale: The factor by which a GradScaler multiplied the losses.
        """
        if not self.has_run:
            return True
        grads = [parameter.grad for parameter in self._source.parameters() if parameter.grad is not None]
        if suspects(grads):
            self._source.discard()
            return False
        if grad_scale != 1:
            torch._foreach_div_(grads, grad_scale)
        self._source.step(_plain(self._setup.optimizers[0]))
        return True

    def discard(self) -> None:
        """Leave the heads without gradients."""
        self._source.discard()


def prepare_stage(setup: Setup, shapes: Sequence[Sequence[int]], place: int) -> None:
    """Build the head of a pipeline's stage; see `Local.prepare_stage`."""
    if setup.local is None:
        raise ValueError(
            "gradients='local': no plan of this schedule asks for local losses: build AdaGP with "
            "schedules.always_local() and predictor=None"
        )
    parameters = [(name, part) for name, part in setup.model.named_parameters() if part.requires_grad]
    first = parameters[0][1] if parameters else next(iter(setup.parameters()))
    setup.local.prepare_stage(
        shapes, place, [name for name, _ in parameters], first.device, first.dtype, _plain(setup.optimizers[0])
    )


def _plain(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside another library's wrapper."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
