"""The engine: `AdaGP` stands beside a model and an optimizer and runs batches under the schedule's plans."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVarTuple, overload

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from adagp import schedules
from adagp._engine.attachment import Attachment
from adagp._engine.batch import Batch, NonFiniteError
from adagp._engine.capture.hooks import GroupNormHook, Hook, OrderHook
from adagp.distributed.ranks import refuse_sharded
from adagp.layers.coverage import Coverage
from adagp.predictors import Predictor
from adagp.quality import LayerQuality
from adagp.schedules import Phase, Plan, Schedule
from adagp.sources import Source

logger = logging.getLogger("adagp")

More = TypeVarTuple("More")


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
        stop_on_nonfinite: bool | None = None,
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
            stop_on_nonfinite: Raise `NonFiniteError` where a true gradient is not finite, before anything is updated.
                Not where a GradScaler is in use, or somebody else ran the backward: they skip such steps themselves.
                None decides by the first batch: yes, unless that would cost more than about 1 % of a batch.
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
            stop_on_nonfinite=stop_on_nonfinite,
            timer=timer,
        )
        # Before any other hook, so that what is recorded is what the layer itself computed.
        self._hooks = [
            layer.module.register_forward_hook(Hook(self._attached, layer), prepend=True, with_kwargs=True)
            for layer in self._attached.layers
        ]
        self._hooks += [
            norm.register_forward_pre_hook(GroupNormHook(self._attached), with_kwargs=True)
            for norm in self._attached.group_norms()
        ]
        self._order_hooks = [
            module.register_forward_pre_hook(OrderHook(self._attached, name, module))
            for name, module in self._attached.modules()
            if self.schedule.wants_order
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

    @overload
    def step(self, closure: Callable[[], Tensor], scaler: GradScaler | None = None) -> Tensor | None: ...

    @overload
    def step(
        self, closure: Callable[[], tuple[Tensor, *More]], scaler: GradScaler | None = None
    ) -> tuple[Tensor, *More] | None: ...

    def step(self, closure: Callable[[], Any], scaler: GradScaler | None = None) -> Any:
        """Run one batch: forward, gradients, optimizer.

        Args:
            closure: Runs the forward and returns the loss, or a tuple of the loss and more, such as the model's
                outputs. It must not call `backward` itself.
            scaler: A GradScaler, used only in batches with a true backward.

        Returns:
            The detached loss, in a tuple with the rest where the closure gave one; None where the forward was left
            out (`skip_forward`).
        """
        if isinstance(self.optimizer, torch.optim.LBFGS):
            result = self._step_lbfgs(closure)
        else:
            batch, result = self._evaluate(closure, scaler)
            batch.step()
        self.optimizer.zero_grad(set_to_none=True)
        return result

    def _step_lbfgs(self, closure: Callable[[], Any]) -> Any:
        """LBFGS evaluates a batch several times; it remains one step of the schedule, and the first loss counts."""
        first = self.step_index
        results: list[Any] = []

        def evaluate() -> float:
            self._attached.step_index = first
            self.optimizer.zero_grad(set_to_none=True)
            results.append(self._evaluate(closure, None)[1])
            return float(_loss_of(results[-1]))

        self.optimizer.step(evaluate)
        return results[0]

    def _evaluate(self, closure: Callable[[], Any], scaler: GradScaler | None) -> tuple[Batch, Any]:
        """One batch, and what the closure returned; a GP batch that is not finite is done again with backprop."""
        batch, result = self._evaluate_once(closure, scaler)
        if batch.failed:
            self.optimizer.zero_grad(set_to_none=True)
            self._attached.step_index = batch.step_index
            self._attached.force_backprop = True
            batch, result = self._evaluate_once(closure, scaler)
        return batch, result

    def _evaluate_once(self, closure: Callable[[], Any], scaler: GradScaler | None) -> tuple[Batch, Any]:
        batch = self.batch(scaler=scaler)
        with batch:
            if not batch.needs_forward:
                return batch, None
            with _explained_gp(batch):
                result = closure()
            self._backward(batch, _loss_of(result), closure)
        loss = _loss_of(result).detach()
        return batch, (loss, *result[1:]) if isinstance(result, tuple) else loss

    def _backward(self, batch: Batch, loss: Tensor, closure: Callable[[], Any]) -> None:
        """The batch's backward; where the loss is not finite, one more forward finds the layer."""
        try:
            batch.backward(loss)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}; {self._first_not_finite(closure)}") from None

    def _first_not_finite(self, closure: Callable[[], Any]) -> str:
        found: list[str] = []

        def note(name: str, output: Any) -> None:
            if isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(name)

        hooks = [
            layer.module.register_forward_hook(lambda _, inputs, output, name=layer.name: note(name, output))
            for layer in self._attached.layers
        ]
        batch, self._attached.open_batch = self._attached.open_batch, None  # this forward is no part of it
        try:
            with torch.no_grad():
                closure()
        finally:
            self._attached.open_batch = batch
            for hook in hooks:
                hook.remove()
        if not found:
            return "the output of every covered layer is finite"
        return f"layer {found[0]!r} is the first whose output is not finite"

    def batch(self, scaler: GradScaler | None = None) -> Batch:
        """Open one batch of the schedule, for loops that need their own hands; use it in a `with` statement.

        Several `backward` calls inside accumulate, as micro-batches do. When the block ends every `.grad` is in place.

        Args:
            scaler: A GradScaler, used only where there is a true backward.
        """
        if not self._hooks:
            raise RuntimeError("this AdaGP was removed from its model: build a new one")
        if not self.schedule.wants_order:
            self._remove(self._order_hooks)
        return Batch(self._attached, scaler)

    def next_plan(self) -> Plan:
        """The plan of the next batch; asking changes nothing."""
        return self._attached.next_plan()

    def coverage(self) -> Coverage:
        """Which layers are covered at present, which are not, and why."""
        return self._attached.coverage()

    def quality(self) -> dict[str, LayerQuality]:
        """Running figures of each layer's predictions against its true gradients, in the order of the model."""
        found = self._attached.quality.report()
        return {layer.name: found[layer.name] for layer in self._attached.layers if layer.name in found}

    def counts(self) -> dict[str, int]:
        """How many layer updates each source supplied.

        Two events are counted too: `fallback` (a GP batch redone or followed by BP because of a NaN) and `nonfinite`
        (a layer's true gradient that was not finite, so that nothing learned from it).
        """
        return dict(self._attached.counts)

    def remove(self) -> None:
        """Take every hook out of the model; it is then as it was before."""
        self._remove(self._hooks)
        self._remove(self._order_hooks)

    @staticmethod
    def _remove(hooks: list[RemovableHandle]) -> None:
        while hooks:
            hooks.pop().remove()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, in plain types and tensors, so that it loads with `weights_only=True`."""
        return self._attached.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; ValueError says in what the saved model or set-up differs from this one."""
        self._attached.load_state_dict(state)


def _loss_of(result: Any) -> Any:
    """The loss in what a closure returned: alone, or first in a tuple."""
    return result[0] if isinstance(result, tuple) and result else result


@contextmanager
def _explained_gp(batch: Batch) -> Iterator[None]:
    """Say why autograd has no graph where a closure asks for one in GP."""
    try:
        yield
    except RuntimeError as error:
        if batch.plan.phase is not Phase.GP or "does not require grad" not in str(error):
            raise
        raise RuntimeError(
            f"step {batch.step_index} is a GP batch, in which there is no autograd graph, and the closure asked "
            "autograd for gradients (a gradient penalty, a derivative in the loss): leave that term out where "
            "torch.is_grad_enabled() is False, or use schedules without GP batches"
        ) from error


def _refuse_other_kinds(model: object, optimizer: object, schedule: object, predictor: object) -> None:
    """Name an argument that is not what it should be before something deep inside does."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r}: give a torch.nn.Module, and the optimizer after it")
    if not hasattr(optimizer, "param_groups"):  # some that wrap another are no torch.optim.Optimizer themselves
        raise TypeError(f"optimizer = {optimizer!r}: give the torch.optim optimizer of the model's parameters")
    kind = next((kind for kind in type(optimizer).__mro__ if kind.__module__.split(".")[0] == "opacus"), None)
    if kind is not None:
        raise ValueError(
            f"optimizer = {kind.__module__}.{kind.__name__}: it adds noise to clipped per-sample gradients, and a "
            "prediction carries no privacy guarantee: train without AdaGP, or without differential privacy"
        )
    if not callable(schedule):
        raise TypeError(f"schedule = {schedule!r}: give one of adagp.schedules, or a function from a step to its Plan")
    try:
        inspect.signature(schedule).bind(0)
    except ValueError:
        pass  # a callable written in C may tell nothing about its arguments
    except TypeError:
        raise TypeError(
            f"schedule = {schedule!r}: it must be callable as schedule(step); did you pass a factory such as "
            "schedules.fixed without calling it?"
        ) from None
    if isinstance(predictor, type):
        raise TypeError(f"predictor = {predictor!r}: give an object, not its class")
