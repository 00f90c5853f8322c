"""`AdaGP`: attaches to a model and an optimizer, and runs batches under the schedule's plans."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, TypeVar, TypeVarTuple, cast, overload

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from adagp._engine import saved_state
from adagp._engine.batch import Batch
from adagp._engine.capture.hooks import (
    CallToCutHook,
    Current,
    GroupNormHook,
    LayerHook,
    MaskHook,
    ModelCallHook,
    ModelOutputHook,
    OrderHook,
    hook_cuts,
)
from adagp._engine.capture.masks import masking_modules
from adagp._engine.coverage import coverage, covered_layers
from adagp._engine.finite import NonFiniteError
from adagp._engine.local import prepare_stage
from adagp._engine.planning import Planner
from adagp._engine.probe import probe
from adagp._engine.progress import LayerProgress, Progress
from adagp._engine.scaling import Backward
from adagp._engine.setup import Options, set_up
from adagp.distributed.ranks import reshard
from adagp.layers import Coverage
from adagp.layers.coverage import owners
from adagp.predictors import Predictor
from adagp.quality import LayerQuality
from adagp.schedules import Adaptive, Phase, Plan, Schedule
from adagp.sources import Source

More = TypeVarTuple("More")
Result = TypeVar("Result")
Closure = Callable[[], Result] | Callable[[float], Result]
"""Runs the forward of a batch; one with an argument is given the scale of its samples."""


class AdaGP:
    """Lets each layer's weight gradient come, batch by batch, from where the schedule says.

    The model is not wrapped: its class, outputs and `state_dict` keys stay as they are. Attach before `torch.compile`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
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
            optimizer: Any optimizer over the model's parameters, or several that share them out, such as Muon for the
                matrices and AdamW for the rest.
            schedule: Says for each step which source supplies each layer; see `adagp.schedules`.
            predictor: `trusted`, `paper`, `literal`, `label-aware`, an object with the methods of `Predictor`, or None
                for none.
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
        options = Options(immediate, skip_forward, stop_on_nonfinite, timer)
        self._setup = set_up(model, optimizer, schedule, predictor, sources or {}, include, exclude, options)
        self._progress = Progress({layer.name: LayerProgress() for layer in self._setup.layers})
        self._planner = Planner(self._setup, self._progress)
        self._current = Current()
        self._begun: Batch | None = None  # some of its micro-batches are done
        self._hooks = self._hook_in()
        self._order_hooks = self._hook_in_for_order() if self.schedule.wants_order else []

    def _hook_in(self) -> list[RemovableHandle]:
        setup, current = self._setup, self._current
        # Before any other hook, so that what is recorded is what the layer itself computed.
        hooks = [
            layer.module.register_forward_hook(LayerHook(current, layer), prepend=True, with_kwargs=True)
            for layer in setup.layers
        ]
        hooks += [
            norm.register_forward_pre_hook(GroupNormHook(current), with_kwargs=True) for norm in setup.group_norms()
        ]
        if any(source.keeps_less for source in setup.sources.values()):
            hooks += [
                module.register_forward_hook(MaskHook(current, module), prepend=True)
                for module in masking_modules(setup.model)
            ]
        if setup.needs.needs_loss_grad:
            model = setup.given_model  # outside of DistributedDataParallel, which prepares for a backward inside
            hooks += [
                model.register_forward_pre_hook(ModelCallHook(current, model)),
                model.register_forward_hook(ModelOutputHook(current, model)),
            ]
        if setup.local is not None:
            hooks.append(setup.model.register_forward_pre_hook(CallToCutHook(current, setup.model), with_kwargs=True))
            hook_cuts(current, setup.model, setup.local.named_cuts)
        return hooks

    def _hook_in_for_order(self) -> list[RemovableHandle]:
        return [
            module.register_forward_pre_hook(OrderHook(self._current, name, module))
            for name, module in owners(self._setup.model)
        ]

    @property
    def model(self) -> nn.Module:
        """The model it was attached to."""
        return self._setup.given_model

    @property
    def optimizer(self) -> Optimizer:
        """What steps the model's parameters, where one optimizer holds them all."""
        if len(self.optimizers) > 1:
            raise AttributeError(f"this AdaGP has {len(self.optimizers)} optimizers: use gp.optimizers")
        return self.optimizers[0]

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """What steps the model's parameters."""
        return self._setup.optimizers

    @property
    def schedule(self) -> Schedule:
        """Says for each step which source supplies each layer."""
        return self._setup.schedule

    @property
    def predictor(self) -> Predictor | None:
        """Predicts gradients; None where nothing does."""
        return self._setup.predictor

    @property
    def sources(self) -> Mapping[str, Source]:
        """Every source that the schedule may ask for, by name."""
        return self._setup.sources

    @property
    def step_index(self) -> int:
        """The number of batches that are over."""
        return self._progress.step_index

    @property
    def phase(self) -> Phase:
        """The phase of the batch that is open, or of the next one."""
        return self.next_plan().phase

    @property
    def predictor_seconds(self) -> float:
        """The predictor's share of the time so far; 0 without a `timer`."""
        return self._progress.predictor_seconds

    @overload
    def step(
        self,
        closure: Closure[Tensor],
        scaler: GradScaler | None = None,
        backward: Backward | None = None,
        last: bool = True,
        *,
        target: Any = None,
    ) -> Tensor | None: ...

    @overload
    def step(
        self,
        closure: Closure[tuple[Tensor, *More]],
        scaler: GradScaler | None = None,
        backward: Backward | None = None,
        last: bool = True,
        *,
        target: Any = None,
    ) -> tuple[Tensor, *More] | None: ...

    def step(
        self,
        closure: Closure[Any],
        scaler: GradScaler | None = None,
        backward: Backward | None = None,
        last: bool = True,
        *,
        target: Any = None,
    ) -> Any:
        """Run one batch: forward, gradients, optimizer.

        Args:
            closure: Runs the forward and returns the loss, or a tuple of the loss and more, such as the model's
                outputs. It must not call `backward` itself. For schedules with coarse batches it takes the scale of
                the batch, as in `lambda scale: loss(model(adagp.coarse.images(x, scale)), y)`.
            scaler: A GradScaler, used only in batches with a true backward. With `backward`, the one it scales by.
            backward: Runs the backward in another library's way, such as `accelerator.backward`.
            last: Whether this is the last micro-batch of its batch. If not, gradients accumulate and nothing is
                updated: the next call goes on with the same batch.
            target: What local losses compare the output of their heads with, such as the labels. No other source
                looks at it.

        Returns:
            The detached loss, in a tuple with the rest where the closure gave one; None where the forward was left
            out (`skip_forward`).
        """
        if not callable(closure):
            raise TypeError(f"closure = {closure!r}: give a function that returns the loss")
        if not last:
            self._refuse_accumulation()
        evaluate = self._with_scale(closure)
        if self._setup.uses_lbfgs:
            result = self._step_lbfgs(evaluate, backward)
        else:
            batch, result = self._evaluate(evaluate, scaler, backward, last, target)
            if not last:
                return result
            batch.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return result

    def _refuse_accumulation(self) -> None:
        if self._setup.uses_lbfgs:
            raise ValueError("last=False: LBFGS evaluates a batch several times: compute its whole loss in the closure")
        if self.schedule.wants_probes:
            raise ValueError(
                f"last=False: {type(self.schedule).__name__} evaluates some batches at several scales, so the closure "
                "must have the whole batch"
            )

    def _with_scale(self, closure: Closure[Any]) -> Callable[[float], Any]:
        """The closure as a function of the scale; one that takes none is refused where the schedule needs it."""
        if _takes_scale(closure):
            return cast(Callable[[float], Any], closure)
        coarse = min(self.next_plan().scale, *self.schedule.scales)
        if coarse < 1:
            raise ValueError(
                f"the schedule has coarse batches (scale {coarse:g}), and the closure takes no scale (an argument "
                "without a default): write gp.step(lambda scale: loss(model(adagp.coarse.images(x, scale)), y))"
            )
        return lambda scale: closure()  # type: ignore[call-arg]

    def _step_lbfgs(self, closure: Callable[[float], Any], backward: Backward | None) -> Any:
        """LBFGS evaluates a batch several times; it remains one step of the schedule, and the first loss counts."""
        first = self.step_index
        results: list[Any] = []

        def evaluate() -> float:
            self._progress.step_index = first
            self.optimizer.zero_grad(set_to_none=True)
            results.append(self._evaluate(closure, None, backward, last=True, target=None)[1])
            return float(_loss_of(results[-1]))

        self.optimizer.step(evaluate)
        return results[0]

    def _evaluate(
        self,
        closure: Callable[[float], Any],
        scaler: GradScaler | None,
        backward: Backward | None,
        last: bool,
        target: Any,
    ) -> tuple[Batch, Any]:
        """One batch, and what the closure returned; a GP batch that is not finite is done again with backprop.

        Of an accumulated batch only the last micro-batch is here: nothing is applied, and the next batch is backprop.
        """
        begun = self._open(scaler, last)
        begun.expect_local(target, backward)
        is_whole = begun.is_whole
        batch, result = self._evaluate_once(begun, closure, backward)
        if batch.failed and is_whole:  # it left nothing behind, and the next plan is backprop: the same step again
            self._progress.step_index = batch.step_index
            batch, result = self._evaluate_once(self._open(scaler, last), closure, backward)
        return batch, result

    def _evaluate_once(
        self, batch: Batch, closure: Callable[[float], Any], backward: Backward | None
    ) -> tuple[Batch, Any]:
        is_first = not batch.has_begun
        try:
            with batch:
                if not batch.needs_forward:
                    return batch, None
                try:
                    result = closure(batch.scale)
                except RuntimeError as error:
                    _explain_gp(batch, error)
                    raise
                if is_first and not batch.ran_local and self._setup.has_gradients():
                    raise RuntimeError(
                        "the closure called backward, which gp.step does itself: return the loss, no more"
                    )
                batch.backward(_loss_of(result), backward)
        except NonFiniteError as error:  # where the loss is not finite, one more forward finds the layer
            if batch.loss_is_finite:
                raise
            raise NonFiniteError(f"{error}; {self._first_not_finite(partial(closure, batch.scale))}") from None
        loss = _loss_of(result).detach()
        scales = self.schedule.probe_scales(batch.step_index)
        if scales and not batch.failed:
            found = probe(self._setup, float(loss), scales, lambda scale: _loss_of(closure(scale)))
            self.schedule.observe_probe(batch.step_index, found)
        return batch, (loss, *result[1:]) if isinstance(result, tuple) else loss

    def _first_not_finite(self, closure: Callable[[], Any]) -> str:
        found: list[str] = []

        def note(name: str, output: Any) -> None:
            if isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(name)

        hooks = [
            layer.module.register_forward_hook(lambda _, inputs, output, name=layer.name: note(name, output))
            for layer in covered_layers(self._setup, self._progress)
        ]
        try:
            with torch.no_grad():
                closure()
        finally:
            _remove(hooks)
            if self._setup.ranks.shards_rows:
                reshard(self._setup.model)
        if not found:
            return "the output of every covered layer is finite"
        return f"layer {found[0]!r} is the first whose output is not finite"

    def batch(self, scaler: GradScaler | None = None, last: bool = True, *, target: Any = None) -> Batch:
        """Open one batch of the schedule, for loops that need their own hands; use it in a `with` statement.

        Several `backward` calls inside accumulate, as micro-batches do. When the block ends every `.grad` is in place.

        Args:
            scaler: A GradScaler, used only where there is a true backward. With `batch.backward(loss, by=...)`, the one
                that `by` scales with.
            last: Whether the block has the last micro-batch of its batch. If not, gradients accumulate, and the next
                call goes on with the same batch. Between the blocks the model is as without a batch.
            target: What local losses compare the output of their heads with. Where one block has several micro-batches,
                call `batch.expect_local(target)` before the forward of each.
        """
        if self.schedule.wants_probes:
            raise ValueError(
                f"{type(self.schedule).__name__} evaluates some batches at several scales, which only gp.step can do: "
                "use gp.step, or schedules.progressive"
            )
        batch = self._open(scaler, last)
        batch.expect_local(target)
        return batch

    def _open(self, scaler: GradScaler | None, last: bool) -> Batch:
        """The batch that has begun, or a new one."""
        if not self._hooks:
            raise RuntimeError("this AdaGP was removed from its model: build a new one")
        batch = self._begun
        if batch is None or batch.is_over or batch.step_index != self.step_index:
            if not self.schedule.wants_order:
                _remove(self._order_hooks)
            batch = Batch(self._setup, self._progress, self._current, self._planner, scaler)
        self._begun = None if last else batch
        return batch.expect(last, scaler)

    def join_pipeline(self, place: int, local_shapes: Sequence[Sequence[int]] | None = None) -> None:
        """Say that this model is one stage of a pipeline, whose other ranks train other stages.

        Args:
            place: Which of the stages it is.
            local_shapes: Where the stages learn from local losses, the shape of every stage's output, without the
                batch.

        Raises:
            ValueError: When the set-up is not for pipelines.
        """
        options = self._setup.options
        if options.immediate or options.skip_forward:
            raise ValueError(
                "immediate=True and skip_forward=True are not for pipelines: a stage updates its layers when its "
                "forward is done, and the next stage waits for its output"
            )
        if self._setup.needs.needs_loss_grad:
            raise ValueError(
                "the predictor asks for the gradient of the loss at the model's output, which only the last stage of a "
                "pipeline has: use another predictor"
            )
        if isinstance(self.schedule, Adaptive):
            raise ValueError(
                "an adaptive schedule decides by the predictions of its own stage, and the stages would soon be in "
                "different phases: use schedules.ladder or schedules.fixed"
            )
        self._setup.ranks.expect_parts()
        if local_shapes is not None:
            prepare_stage(self._setup, local_shapes, place)

    def next_plan(self) -> Plan:
        """The plan of the next batch; asking changes nothing."""
        return self._planner.next_plan()

    def coverage(self) -> Coverage:
        """Which layers are covered at present, which are not, and why."""
        return coverage(self._setup, self._progress)

    def quality(self) -> dict[str, LayerQuality]:
        """Running figures of each layer's predictions against its true gradients, in the order of the model."""
        found = {layer.name: self._progress.layers[layer.name].quality for layer in self._setup.layers}
        return {name: quality for name, quality in found.items() if quality.batches}

    def counts(self) -> dict[str, int]:
        """How many layer updates each source supplied.

        Two events are counted too: `fallback` (a GP batch redone or followed by BP because of a NaN) and `nonfinite`
        (a layer's true gradient that was not finite, so that nothing learned from it).
        """
        return dict(self._progress.counts)

    def remove(self) -> None:
        """Take every hook out of the model; it is then as it was before."""
        self._begun = None
        _remove(self._hooks)
        _remove(self._order_hooks)
        _remove(list(self._current.cut_hooks.values()))
        self._current.cut_hooks.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, in plain types and tensors, so that it loads with `weights_only=True`."""
        return saved_state.save(self._setup, self._progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; ValueError says in what the saved model or set-up differs from this one."""
        saved_state.load(self._setup, self._progress, state)
        self._begun = None


def _remove(hooks: list[RemovableHandle]) -> None:
    while hooks:
        hooks.pop().remove()


def _takes_scale(closure: Callable[..., Any]) -> bool:
    """Whether a closure has an argument that must be given, and so is the scale; defaults bind a loop's variables."""
    if isinstance(closure, FunctionType) and not hasattr(closure, "__wrapped__"):  # asked in every step: be quick
        return closure.__code__.co_argcount > len(closure.__defaults__ or ())
    try:
        parameters = inspect.signature(closure).parameters.values()
    except (TypeError, ValueError):
        return False  # a callable written in C may tell nothing about its arguments
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)


def _loss_of(result: Any) -> Any:
    """The loss in what a closure returned: alone, or first in a tuple."""
    return result[0] if isinstance(result, tuple) and result else result


def _explain_gp(batch: Batch, error: RuntimeError) -> None:
    """Say why autograd has no graph where a closure asks for one in GP."""
    if batch.plan.phase is Phase.GP and "does not require grad" in str(error):
        raise RuntimeError(
            f"step {batch.step_index} is a GP batch, in which there is no autograd graph, and the closure asked "
            "autograd for gradients: gp.step calls backward itself, so return the loss; leave a gradient penalty or "
            "another derivative out where gp.phase is Phase.GP, or use schedules without GP batches"
        ) from error
