"""One batch under a plan, as data flows.

`__enter__`: the plan is in force, and the graph is cut where no task needs it. The user's forward runs; hooks report to
its `ForwardPass`. `backward`: true gradients, if a task needs them. `__exit__`: the gradients are completed, and
everything learns; see `completion`. The user's optimizer steps. A batch that is given in several `with` blocks is
completed by the last of them.
"""

from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from math import isfinite
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from adagp._engine.capture.hooks import Current
from adagp._engine.capture.recorder import Recorder
from adagp._engine.checking import checks_gradients, refuse_nonfinite_loss
from adagp._engine.completion import complete, share_before_backward, update_now
from adagp._engine.coverage import active_layers
from adagp._engine.finite import entries
from adagp._engine.forward import ForwardPass
from adagp._engine.graph import GraphCut
from adagp._engine.layer_batch import LayerBatch, layer_batch
from adagp._engine.local import LocalLosses
from adagp._engine.open_batch import OpenBatch
from adagp._engine.planning import Planner
from adagp._engine.progress import Progress
from adagp._engine.scaling import Backward, LossScaling
from adagp._engine.setup import Setup
from adagp._engine.statistics import kept_statistics
from adagp.distributed.lost import raise_if_lost
from adagp.schedules import Phase, Plan, ResolvedPlan


class Batch:
    """One batch under a plan; made by `AdaGP.batch`."""

    def __init__(
        self, setup: Setup, progress: Progress, current: Current, planner: Planner, scaler: GradScaler | None
    ) -> None:
        """Nothing is in force before the `with` block."""
        self._setup, self._current, self._planner = setup, current, planner
        step_index, plan = progress.step_index, planner.next_plan()
        timed = partial(progress.timed, setup.options.timer)  # not a method: it would keep the batch alive
        scaling = LossScaling(setup, scaler)
        local = None
        if setup.local is not None:
            local = LocalLosses(setup, current, setup.local, step_index, scaling.backward, scaling.is_enabled)
        self._graph = GraphCut(setup, step_index)
        recorder = Recorder(
            setup.needs, setup.poolers, setup.options.immediate, None if setup.options.timer is None else timed
        )
        self._forward = ForwardPass(plan.phase, step_index, recorder, self._graph, current, local)
        self._open = OpenBatch(
            setup,
            progress,
            current,
            step_index,
            plan,
            planner.resolve(plan),
            scaling,
            local,
            self._forward,
            timed,
            layers={},
        )
        self._forward.counts_macs = checks_gradients(self._open) is None
        if setup.options.immediate:
            self._forward.update_now = partial(update_now, self._open)
        self._in_force = ExitStack()
        self._backward_done = self._scale_was_read = False
        self._is_last = True
        self.has_begun = False
        """Whether a first `with` block of it is over."""
        self.is_over = False
        """Whether its last `with` block is over, or it was given up."""
        self._give_tasks()

    def _give_tasks(self) -> None:
        """Give every layer that is not frozen now its task."""
        setup, resolved = self._setup, self.resolved
        trained_on: Collection[str] = ()
        if setup.predictor is not None and resolved.trains_predictor:
            trained_on = setup.predictor.layers_to_train_on()
        self._open.layers = self._forward.layers = {
            name: layer_batch(
                setup.by_name[name], task, setup.sources[task.source.name], trained_on, self._current.is_compiled
            )
            for name, task in resolved.tasks.items()
        }
        if self._open.local is not None:
            self._open.local.resolved = resolved

    @property
    def _layers(self) -> dict[str, LayerBatch]:
        return self._open.layers

    @property
    def step_index(self) -> int:
        """The step of this batch."""
        return self._open.step_index

    @property
    def plan(self) -> Plan:
        """The plan of this batch."""
        return self._open.plan

    @property
    def resolved(self) -> ResolvedPlan:
        """The task of every layer that is not frozen."""
        return self._open.resolved

    @property
    def failed(self) -> bool:
        """Whether a prediction or the loss was not finite in GP; nothing was applied, or nothing more if immediate."""
        return self._open.failed

    @property
    def loss_is_finite(self) -> bool:
        """Whether every loss given so far is finite; on all ranks when the batch is over."""
        return self._open.loss_is_finite

    @property
    def scale(self) -> float:
        """The fraction of their size that this batch's samples are to have; 1 but for coarse batches."""
        self._scale_was_read = True
        return self.plan.scale

    @property
    def needs_forward(self) -> bool:
        """Whether the forward pass must run: always, unless `skip_forward` and no source uses activations."""
        return self._open.needs_forward

    # --- the plan comes into force

    def expect(self, last: bool, scaler: GradScaler | None) -> "Batch":
        """Say before a `with` block whether it is the last of this batch."""
        if scaler is not self._open.scaling.scaler:
            raise ValueError("scaler: give every micro-batch of a batch the same one")
        self._is_last = last
        return self

    def expect_local(self, target: Any, by: Backward | None = None, share: float = 1.0) -> None:
        """Say before a forward what local losses compare with, who runs their backward, and their share of a batch."""
        local = self._open.local
        if local is not None:
            local.target, local.by, local.share = target, by, share
        elif target is not None:
            raise ValueError("target: no plan of the schedule asks for local losses: leave it out")

    @property
    def ran_local(self) -> bool:
        """Whether a part of the network has had its backward, in the forward."""
        return self._open.local is not None and self._open.local.has_run

    @property
    def is_whole(self) -> bool:
        """Whether one `with` block has all of this batch."""
        return self._is_last and not self.has_begun

    def __enter__(self) -> "Batch":
        """Put the plan in force: the graph is cut where no source needs it."""
        setup, progress = self._setup, self._open.progress
        if self._current.listener is not None:
            raise RuntimeError("the last batch is still open: leave its `with` block before the next begins")
        if self.step_index != progress.step_index:
            raise RuntimeError(
                f"this batch was made for step {self.step_index}, and step {progress.step_index} is next: call "
                "gp.batch() when a batch begins, once for each"
            )
        if self.is_over:
            raise RuntimeError(f"this batch of step {self.step_index} was given up: call gp.batch() for a new one")
        if [layer.name for layer in active_layers(setup, progress)] != list(self._layers):
            self._refuse_change()
            self._open.resolved = self._planner.resolve(self.plan)
            self._give_tasks()  # something was frozen or unfrozen since the batch was made
        if not self.has_begun:
            self._refuse_leftovers()
        self._backward_done = False  # each micro-batch has its own
        setup.ranks.warn_if_nothing_is_shared()  # at the first batch: a pipeline says before that this is right
        for source in setup.sources.values():
            source.begin(self.plan)
        self._graph.cut(self.resolved, self._layers.values(), self._open.without_source)
        if self._open.local is not None:
            self._in_force.enter_context(self._open.local.unsynchronised())
        if self.plan.is_coarse and progress.was_full:  # they are for samples of full size
            self._in_force.enter_context(kept_statistics(setup.model))
        self._forward.listen()
        return self

    def _refuse_change(self) -> None:
        if self.has_begun:
            self._end()
            raise RuntimeError(
                f"layers were frozen or unfrozen between two micro-batches of step {self.step_index}: do that between "
                "batches"
            )

    def _refuse_leftovers(self) -> None:
        """A gradient left from before would be mistaken for this batch's."""
        for parameter in self._setup.parameters():
            if parameter.grad is not None:
                if bool(entries(parameter.grad).ne(0).any()):
                    raise RuntimeError(
                        "a gradient is left from an earlier backward: call optimizer.zero_grad() after each step; "
                        "to accumulate, call batch.backward several times inside one batch, or give last=False"
                    )
                parameter.grad = None

    # --- the backward runs

    def backward(self, loss: Tensor, by: Backward | None = None) -> None:
        """True backward where the plan has one; may be called again for the next micro-batch of the same batch.

        Args:
            loss: One number.
            by: Runs the backward in another library's way, such as `accelerator.backward`. Give it in GP too: there it
                runs only to find by how much it divides the loss, and only for predictors that ask for its gradient.
        """
        _refuse_shape(loss)
        local = self._open.local
        if self.ran_local and local is not None and by is not local.by:
            raise ValueError(
                "by: local losses have had their backward in the forward already: use gp.step(closure, backward=...)"
            )
        if local is not None and not self.is_whole:
            local.warn_of_scale(loss)
        self.ran_forward()  # before the backward, whose data push all others out of the processor's caches
        self._forward.is_recording = False  # in backward, activation checkpointing runs layers a second time
        try:
            if self._open.is_gp:
                self._look_at_loss(loss, by)
            else:
                self._run_backward(loss, by)
        finally:
            self._forward.is_recording = True

    def _look_at_loss(self, loss: Tensor, by: Backward | None) -> None:
        """In GP the loss is looked at, and differentiated at the model's output where the predictor asks for that."""
        if self.needs_forward:  # otherwise ranks exchange nothing, and could not agree on what to do about it
            self._open.loss_is_finite &= isfinite(loss.item())
        self._open.scaling.hand_over(by)
        if self._setup.needs.needs_loss_grad:
            self._forward.recorder.differentiate(self._open.scaling.loss_in_gp(loss, by))

    def _run_backward(self, loss: Tensor, by: Backward | None) -> None:
        self._refuse_loss(loss)
        if self._is_last:
            share_before_backward(self._open)
        if loss.requires_grad:
            self._open.scaling.backward(loss, by)
        self._backward_done = self._open.ran_own_backward = True

    def ran_forward(self) -> None:
        """Say that the forward of a micro-batch is over, where the loss is elsewhere, as in a pipeline's stage."""
        self._forward.end_micro_batch()

    def ran_backward(self) -> None:
        """Say that somebody else, such as a pipeline's schedule, has run every backward of this batch."""
        self._backward_done = True

    def _refuse_loss(self, loss: Tensor) -> None:
        if not loss.requires_grad and self._needs_backward():
            raise RuntimeError("the loss depends on no trainable parameter: compute it from the model's output")
        if self._open.scaling.is_enabled:
            return  # it skips the step by itself and lowers its scale
        self._open.loss_is_finite &= isfinite(loss.item())
        if self._setup.ranks.count == 1:  # several go through the backward, where they wait for each other
            refuse_nonfinite_loss(self._open)

    def _needs_backward(self) -> bool:
        """Whether anything waits for backward: a plan may give every parameter another source, or rest."""
        return self.resolved.needs_backward or any(
            self.resolved.trains(module) for module, _ in self._open.without_source()
        )

    # --- the batch ends

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Supply the other gradients and let everything learn, unless more micro-batches follow."""
        self._forward.pause()
        changed = self._graph.restore()
        self._in_force.close()
        self.has_begun = True
        if kind is not None:
            self._end()
            self._explain(error)
            return
        try:
            self._refuse_unfinished(changed)
            if self._is_last:
                self._forward.stop()
                self.is_over = True
                complete(self._open)
        except BaseException as error:
            self._end()
            self._explain(error)
            raise

    def _explain(self, error: BaseException | None) -> None:
        """Name another rank's death where torch names a socket."""
        if self._setup.ranks.count > 1:
            raise_if_lost(error, f"at step {self.step_index} ({self.plan.phase.value})")

    def _end(self) -> None:
        """Give the batch up."""
        self._forward.stop()
        self.is_over = True
        self._open.discard()

    def _refuse_unfinished(self, changed: nn.Parameter | None) -> None:
        if changed is not None:
            raise RuntimeError(
                f"requires_grad of {self._setup.name_of(changed)} was switched on inside the batch of step "
                f"{self.step_index}, whose plan has another source for it: freeze and unfreeze between batches"
            )
        if self.plan.is_coarse and not self._scale_was_read:
            raise RuntimeError(
                f"step {self.step_index} is a coarse batch (scale {self.plan.scale:g}), and batch.scale was not read: "
                "make its samples smaller, for example by adagp.coarse.images(x, batch.scale)"
            )
        if self._open.local is not None:
            self._open.local.refuse_uncut()
        if self.plan.phase is not Phase.GP and not self._backward_done:
            raise RuntimeError(f"a {self.plan.phase.value} batch ended without batch.backward(loss)")

    def step(self) -> None:
        """Step every optimizer as this batch needs it: through a GradScaler only where gradients were scaled."""
        self._open.scaling.step()


def _refuse_shape(loss: Tensor) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss is {loss!r}, not a tensor: give backward the loss itself; a closure must return it")
    if loss.numel() != 1:
        raise ValueError(f"the loss has shape {tuple(loss.shape)}: reduce it to one number, for example by its mean")
