"""The engine: `AdaGP` stands beside a model and an optimizer and runs batches under the schedule's plans."""

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from adagp import schedules
from adagp.attachment import Attachment
from adagp.batch import Batch, NonFiniteError
from adagp.coverage import Coverage
from adagp.distributed import refuse_sharded
from adagp.hook import Hook
from adagp.predictor import Predictor
from adagp.quality import LayerQuality
from adagp.schedules import Plan, Schedule
from adagp.sources import Source

logger = logging.getLogger("adagp")


class AdaGP:
    """Lets each layer's weight gradient come, batch by batch, from where the schedule says.

    The model is not wrapped: its class, outputs and `state_dict` keys stay as they are. Attach before `torch.compile`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule | Callable[[int], Plan],
        predictor: str | Predictor | None = "trusted",
        *,
        sources: Mapping[str, Source] | None = None,
        include: str | None = None,
        exclude: str | None = None,
        immediate: bool = False,
        skip_forward: bool = False,
        timer: Callable[[], float] | None = None,
    ) -> None:
        """Find the layers, check that everything fits together, and hook in.

        Args:
            model: Any module; it stays as it is.
            optimizer: Any optimizer over the model's parameters.
            schedule: Says for each step which source supplies each layer; see `adagp.schedules`.
            predictor: `trusted`, `paper`, `literal`, an object with the methods of `Predictor`, or None for none.
            sources: Objects to take for some sources in place of the default ones, such as `{"topk": TopK(k=4)}`.
            include: Cover only layers whose name or class this regular expression is found in.
            exclude: Leave out layers whose name or class this regular expression is found in.
            immediate: In GP, update each layer as soon as its output exists, so that the rows of only one layer are
                alive at a time. Not for weights used twice in a forward, and gradients cannot be clipped.
            skip_forward: Leave the forward pass out where a plan needs no layer's output; `step` then returns None.
            timer: A clock in seconds; with it `predictor_seconds` tells the predictor's share.
        """
        if hasattr(model, "_orig_mod"):
            raise ValueError("model is already compiled: attach AdaGP to the plain module first, then torch.compile it")
        _refuse_other_kinds(model, optimizer, schedule, predictor)
        refuse_sharded(model)
        self.model = model
        self._attached = Attachment(
            model,
            optimizer,
            schedule if isinstance(schedule, Schedule) else schedules.from_function(schedule),
            predictor,
            sources=sources or {},
            include=include,
            exclude=exclude,
            immediate=immediate,
            skip_forward=skip_forward,
            timer=timer,
        )
        # Before any other hook, so that what is seen is what the layer itself computed.
        self._hooks = [
            layer.module.register_forward_hook(Hook(self._attached, layer), prepend=True, with_kwargs=True)
            for layer in self._attached.layers
        ]
        if self._attached.predictor is not None and "predicted" not in self.schedule.sources:
            logger.info("no plan asks for predictions: the predictor only watches; predictor=None saves its cost")

    @property
    def optimizer(self) -> Optimizer:
        """What steps the model's parameters."""
        return self._attached.optimizer

    @property
    def schedule(self) -> Schedule:
        """Says for each step which source supplies each layer."""
        return self._attached.schedule

    @property
    def step_index(self) -> int:
        """How many batches are over."""
        return self._attached.step_index

    @property
    def predictor_seconds(self) -> float:
        """The predictor's share of the time so far; 0 without a `timer`."""
        return self._attached.predictor_seconds

    def step(self, closure: Callable[[], Tensor], scaler: GradScaler | None = None) -> Tensor | None:
        """Run one batch: forward, gradients, optimizer.

        Args:
            closure: Runs the forward and returns the loss; it must not call `backward` itself.
            scaler: A GradScaler, used only in batches with a true backward.

        Returns:
            The detached loss, or None where the forward was left out (`skip_forward`).
        """
        if isinstance(self.optimizer, torch.optim.LBFGS):
            loss = self._step_lbfgs(closure)
        else:
            batch, loss = self._evaluate(closure, scaler)
            batch.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _step_lbfgs(self, closure: Callable[[], Tensor]) -> Tensor | None:
        """LBFGS evaluates a batch several times; it remains one step of the schedule."""
        first = self.step_index

        def evaluate() -> float:
            self._attached.step_index = first
            self.optimizer.zero_grad(set_to_none=True)
            loss = self._evaluate(closure, None)[1]
            return float("nan") if loss is None else float(loss)

        return torch.tensor(self.optimizer.step(evaluate))

    def _evaluate(self, closure: Callable[[], Tensor], scaler: GradScaler | None) -> tuple[Batch, Tensor | None]:
        batch = self.batch(scaler=scaler)
        loss = None
        with batch:
            if batch.needs_forward:
                loss = closure()
                self._backward(batch, loss, closure)
        if batch.failed:
            self.optimizer.zero_grad(set_to_none=True)
            self._attached.step_index = batch.step_index
            self._attached.force_backprop = True
            batch = self.batch(scaler=scaler)
            with batch:
                loss = closure()
                self._backward(batch, loss, closure)
        return batch, None if loss is None else loss.detach()

    def _backward(self, batch: Batch, loss: Tensor, closure: Callable[[], Tensor]) -> None:
        """The batch's backward; where the loss is not finite, one more forward finds the layer."""
        try:
            batch.backward(loss)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; {self._first_not_finite(closure)}") from None

    def _first_not_finite(self, closure: Callable[[], Tensor]) -> str:
        found: list[str] = []

        def note(name: str, output: Any) -> None:
            if isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(name)

        hooks = [
            layer.module.register_forward_hook(lambda _, inputs, output, name=layer.name: note(name, output))
            for layer in self._attached.layers
        ]
        with torch.no_grad():
            closure()
        for hook in hooks:
            hook.remove()
        if not found:
            return "the output of every covered layer is finite"
        return f"layer {found[0]!r} is the first whose output is not finite"

    def batch(self, scaler: GradScaler | None = None, *, final: bool = True) -> Batch:
        """Open one batch of the schedule, for loops that need their own hands; use it in a `with` statement.

        Several `backward` calls inside accumulate, as micro-batches do. When the block ends every `.grad` is in place.

        Args:
            scaler: A GradScaler, used only where there is a true backward.
            final: False where another part of the same batch follows with an update of its own: the schedule then
                stays at its step.
        """
        if not self._hooks:
            raise RuntimeError("this AdaGP was removed from its model: build a new one")
        return Batch(self._attached, scaler, final)

    def next_plan(self) -> Plan:
        """The plan of the next batch; asking changes nothing."""
        return self._attached.next_plan()

    def coverage(self) -> Coverage:
        """Which layers are covered, which are not, and why."""
        return self._attached.coverage

    def quality(self) -> dict[str, LayerQuality]:
        """Running figures of each layer's predictions against its true gradients, in the order of the model."""
        found = self._attached.quality.report()
        return {layer.name: found[layer.name] for layer in self._attached.layers if layer.name in found}

    def counts(self) -> dict[str, int]:
        """How many layer updates each source supplied.

        Events are counted beside: `fallback` (a GP batch redone or followed by BP because of a NaN) and `nonfinite`
        (a layer's true gradient that was not finite, so that nothing learned from it).
        """
        return dict(self._attached.counts)

    def bytes_per_batch(self) -> dict[str, float]:
        """What this rank sends in a batch of each phase, on average; 0 in one process.

        Counted is what goes into the messages, of DistributedDataParallel and of `adagp`. How often a network then
        carries each byte depends on the algorithm: a ring over n ranks, 2 (n - 1) / n times.
        """
        return {phase: self._attached.bytes[phase] / batches for phase, batches in self._attached.batches.items()}

    def remove(self) -> None:
        """Take every hook out of the model; it is then as it was before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, in plain types and tensors, so that it loads with `weights_only=True`."""
        return self._attached.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; ValueError says in what the saved model or set-up differs from this one."""
        self._attached.load_state_dict(state)


def _refuse_other_kinds(model: object, optimizer: object, schedule: object, predictor: object) -> None:
    """Name an argument that is not what it should be before something deep inside does."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r}: give a torch.nn.Module, and the optimizer after it")
    if not hasattr(optimizer, "param_groups"):  # some that wrap another are no torch.optim.Optimizer themselves
        raise TypeError(f"optimizer = {optimizer!r}: give the torch.optim optimizer of the model's parameters")
    if not callable(schedule):
        raise TypeError(f"schedule = {schedule!r}: give one of adagp.schedules, or a function from a step to its Plan")
    try:
        inspect.signature(schedule).bind(0)
    except ValueError:
        pass  # a callable written in C may tell nothing about its arguments
    except TypeError:
        raise TypeError(
            f"schedule = {schedule!r}: it must take a step's number alone; was it to be called first, as in "
            "schedules.fixed(1, 1)?"
        ) from None
    if isinstance(predictor, type):
        raise TypeError(f"predictor = {predictor!r}: give an object, not its class")
