"""One batch under a plan, as data flows.

`__enter__`: the plan is in force, and the graph is cut where no task needs it. The user's forward runs; hooks report to
its `ForwardPass`. `backward`: true gradients, if a task needs them. `__exit__`: every other source writes its layers'
`.grad`, then the predictor and the sources that remember learn from the true gradients. The user's optimizer steps.
A batch that is given in several `with` blocks is completed by the last of them.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from adagp._engine.capture.hooks import Current
from adagp._engine.capture.recorder import Recorder
from adagp._engine.coverage import active_layers, parameters_without_source
from adagp._engine.exchange import Findings, Shared, average_trials, share
from adagp._engine.finite import NonFiniteError, entries, first_broken, is_cheap, sums_of_squares
from adagp._engine.forward import ForwardPass
from adagp._engine.graph import GraphCut
from adagp._engine.layer_batch import LayerBatch, layer_batch
from adagp._engine.learning import (
    find_true_grads,
    notice_missing_gradients,
    sums_of_all_rows,
    sums_of_own_rows,
    teach,
)
from adagp._engine.local import LocalLosses
from adagp._engine.planning import next_plan, resolve_plan
from adagp._engine.progress import Progress
from adagp._engine.scaling import Backward, LossScaling
from adagp._engine.setup import Setup
from adagp._engine.supply import is_always_finite, write_gradients
from adagp.distributed.ranks import reshard
from adagp.layers import Rows
from adagp.quality import GradientAlignment
from adagp.schedules import Phase
from adagp.sources import GradientRequest

logger = logging.getLogger("adagp")


class Batch:
    """One batch under a plan; made by `AdaGP.batch`."""

    def __init__(self, setup: Setup, progress: Progress, current: Current, scaler: GradScaler | None) -> None:
        """Nothing is in force before the `with` block."""
        self._setup, self._progress, self._current = setup, progress, current
        self._scaling = LossScaling(setup, scaler)
        self.step_index = progress.step_index
        self.plan = next_plan(setup, progress)
        self.failed = False
        """Whether a prediction or the loss was not finite in GP; nothing was applied, or nothing more if immediate."""
        self._timed = partial(progress.timed, setup.options.timer)  # not a method: it would keep the batch alive
        self._graph = GraphCut(setup, self.step_index)
        self._local = None
        if setup.local is not None:
            backward, is_scaled = self._scaling.backward, self._scaling.is_enabled
            self._local = LocalLosses(setup, current, setup.local, self.step_index, backward, is_scaled)
        self._unsynchronised = ExitStack()
        self._forward = ForwardPass(
            self.plan.phase,
            self.step_index,
            Recorder(
                setup.needs,
                setup.poolers,
                setup.options.immediate,
                None if setup.options.timer is None else self._timed,
            ),
            self._graph,
            current,
            self._local,
            self._update_now if setup.options.immediate else None,
            counts_macs=self._checks_finite is None,
        )
        self.loss_is_finite = True
        """Whether every loss given so far is finite; on all ranks when the batch is over."""
        self._backward_done = self._ran_own_backward = False
        self._scale_was_read = False
        self._is_last = True
        self.has_begun = False
        """Whether a first `with` block of it is over."""
        self.is_over = False
        """Whether its last `with` block is over, or it was given up."""
        self._resolve()

    def _resolve(self) -> None:
        """Give every layer that is not frozen now its task."""
        setup = self._setup
        self.resolved = resolve_plan(setup, self._progress, self.plan)
        trained_on = () if setup.predictor is None else setup.predictor.layers_to_train_on()
        self._layers = {
            name: layer_batch(
                setup.by_name[name], task, setup.sources[task.source.name], trained_on, self._current.is_compiled
            )
            for name, task in self.resolved.tasks.items()
        }
        self._forward.layers = self._layers
        if self._local is not None:
            self._local.resolved = self.resolved

    @property
    def scale(self) -> float:
        """The fraction of their size that this batch's samples are to have; 1 but for coarse batches."""
        self._scale_was_read = True
        return self.plan.scale

    @property
    def needs_forward(self) -> bool:
        """Whether the forward pass must run: always, unless `skip_forward` and no source uses activations."""
        return not self._setup.options.skip_forward or self.resolved.needs_forward

    # --- the plan comes into force

    def expect(self, last: bool, scaler: GradScaler | None) -> "Batch":
        """Say before a `with` block whether it is the last of this batch."""
        if scaler is not self._scaling.scaler:
            raise ValueError("scaler: give every micro-batch of a batch the same one")
        self._is_last = last
        return self

    def expect_local(self, target: Any, by: Backward | None = None, share: float = 1.0) -> None:
        """Say before a forward what local losses compare with, who runs their backward, and their share of a batch."""
        if self._local is not None:
            self._local.target, self._local.by, self._local.share = target, by, share
        elif target is not None:
            raise ValueError("target: no plan of the schedule asks for local losses: leave it out")

    @property
    def ran_local(self) -> bool:
        """Whether a part of the network has had its backward, in the forward."""
        return self._local is not None and self._local.has_run

    @property
    def is_whole(self) -> bool:
        """Whether one `with` block has all of this batch."""
        return self._is_last and not self.has_begun

    def __enter__(self) -> "Batch":
        """Put the plan in force: the graph is cut where no source needs it."""
        if self._current.listener is not None:
            raise RuntimeError("the last batch is still open: leave its `with` block before the next begins")
        if self.step_index != self._progress.step_index:
            raise RuntimeError(
                f"this batch was made for step {self.step_index}, and step {self._progress.step_index} is next: call "
                "gp.batch() when a batch begins, once for each"
            )
        if self.is_over:
            raise RuntimeError(f"this batch of step {self.step_index} was given up: call gp.batch() for a new one")
        if [layer.name for layer in active_layers(self._setup, self._progress)] != list(self._layers):
            self._refuse_change()
            self._resolve()  # something was frozen or unfrozen since the batch was made
        if not self.has_begun:
            self._refuse_leftovers()
        self._backward_done = False  # each micro-batch has its own
        self._setup.ranks.warn_if_nothing_is_shared()  # at the first batch: a pipeline says before that this is right
        for source in self._setup.sources.values():
            source.begin(self.plan)
        self._graph.cut(self.resolved, self._layers.values(), self._without_source())
        if self._local is not None:
            self._unsynchronised.enter_context(self._local.unsynchronised())
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

    def _without_source(self) -> list[tuple[str, nn.Parameter]]:
        return list(parameters_without_source(self._setup, self._progress))

    # --- the backward runs

    def backward(self, loss: Tensor, by: Backward | None = None) -> None:
        """True backward where the plan has one; may be called again for the next micro-batch of the same batch.

        Args:
            loss: One number.
            by: Runs the backward in another library's way, such as `accelerator.backward`. Give it in GP too: there it
                runs only to find by how much it divides the loss, and only for predictors that ask for its gradient.
        """
        _refuse_shape(loss)
        if self.ran_local and self._local is not None and by is not self._local.by:
            raise ValueError(
                "by: local losses have had their backward in the forward already: use gp.step(closure, backward=...)"
            )
        if self._local is not None and not self.is_whole:
            self._local.warn_of_scale(loss)
        with self._forward.paused():
            if self.plan.phase is Phase.GP:
                if self.needs_forward:  # otherwise ranks exchange nothing, and could not agree on what to do about it
                    self.loss_is_finite &= bool(torch.isfinite(loss).all())
                self._scaling.hand_over(by)
                if self._setup.needs.needs_loss_grad:
                    self._forward.recorder.differentiate(self._scaling.loss_in_gp(loss, by))
            else:
                self._refuse_loss(loss)
                if loss.requires_grad:
                    self._scaling.backward(loss, by)
                self._backward_done = self._ran_own_backward = True
        self.ran_forward()

    def ran_forward(self) -> None:
        """Say that the forward of a micro-batch is over, where the loss is elsewhere, as in a pipeline's stage."""
        self._forward.end_micro_batch()

    def ran_backward(self) -> None:
        """Say that somebody else, such as a pipeline's schedule, has run every backward of this batch."""
        self._backward_done = True

    def _refuse_loss(self, loss: Tensor) -> None:
        if not loss.requires_grad and self._needs_backward():
            raise RuntimeError("the loss depends on no trainable parameter: compute it from the model's output")
        if self._scaling.is_enabled:
            return  # it skips the step by itself and lowers its scale
        self.loss_is_finite &= bool(torch.isfinite(loss).all())
        if self._setup.ranks.count == 1:  # several go through the backward, where they wait for each other
            self._refuse_nonfinite_loss()

    def _refuse_nonfinite_loss(self) -> None:
        if not self.loss_is_finite:
            raise NonFiniteError(
                f"the loss is not finite at step {self.step_index} ({self.plan.phase.value}): lower the learning rate, "
                "clip gradients, or resume from the last checkpoint"
            )

    def _needs_backward(self) -> bool:
        """Whether anything waits for backward: a plan may give every parameter another source, or rest."""
        return self.resolved.needs_backward or any(self.resolved.trains(module) for module, _ in self._without_source())

    # --- the gradients are completed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Supply the other gradients and let everything learn, unless more micro-batches follow."""
        self._forward.pause()
        changed = self._graph.restore()
        self._unsynchronised.close()
        self.has_begun = True
        if kind is not None:
            self._end()
            return
        try:
            self._refuse_unfinished(changed)
            if self._is_last:
                self._complete()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        """Give the batch up."""
        self._forward.stop()
        self.is_over = True
        self._discard()

    def _complete(self) -> None:
        self._forward.stop()
        self.is_over = True
        alignments: dict[str, GradientAlignment] = {}
        with torch.no_grad(), _full_precision(self._setup.device):
            if self._setup.ranks.shards_rows:
                reshard(self._setup.model)
            shared = self._share()  # before the scaler looks at gradients: all ranks find the same
            layers = self._layers.values()
            notice_missing_gradients(self._progress, self._current, layers, self.step_index, self._ran_own_backward)
            supplied = self._supply(shared)
            if not self.failed:
                self._scaling.unscale(supplied)
                alignments = self._learn(shared, supplied)
                self._step_heads()
        if self.failed:
            self._discard()
            self._progress.count("fallback")
        self._scaling.hand_back()
        self._advance(alignments)

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
        if self.plan.phase is not Phase.GP and not self._backward_done:
            raise RuntimeError(f"a {self.plan.phase.value} batch ended without batch.backward(loss)")

    def _share(self) -> Shared:
        """What the passes showed, over all calls and ranks; all ranks go on in the same way."""
        self._forward.recorder.end_forward()  # a loop without `backward` in GP has not said that its forward is over
        is_gp = self.plan.phase is Phase.GP
        if is_gp and not self.needs_forward:
            return Shared(Findings(), {}, {})
        layers = list(self._layers.values())
        loss_grad, is_missing = None, False
        if self._setup.needs.needs_loss_grad:
            loss_grad = self._forward.recorder.weigh_inputs(self._scaling.of_gradients)
            is_missing = loss_grad is None and any(entry.uses_features and entry.has_run for entry in layers)
        if self._local is not None:
            self.loss_is_finite &= self._local.losses_are_finite
        own = Findings(self.loss_is_finite, is_missing, loss_grad, tuple(self._row_sums()))
        with_features = not (is_gp and self._setup.options.immediate)
        shared = share(self._setup, layers, own, self._unshared(), with_features)
        self.loss_is_finite = shared.findings.loss_is_finite
        if is_gp:
            self.failed |= not self.loss_is_finite
        else:
            self._refuse_nonfinite_loss()
        if shared.findings.lacks_loss_grad:
            raise RuntimeError(
                f"the predictor asks for the gradient of the loss at the model's output, and step {self.step_index} "
                f"({self.plan.phase.value}) has none: call the model itself, compute the loss from its output, and "
                "give it to batch.backward in GP too"
            )
        return shared

    def _unshared(self) -> list[nn.Parameter]:
        """The parameters whose gradients no reducer has seen: from a layer's `grad_output`, or from local losses."""
        if self._local is not None and self.resolved.is_local:
            return [part for part in (*self._setup.parameters(), *self._local.head_parameters()) if part.requires_grad]
        layers = self._layers.values()
        return [part for entry in layers if entry.spec.needs_grad_output for part in entry.layer.parameters()]

    def _row_sums(self) -> list[float]:
        """Where each rank holds other rows: whether a gradient is not finite here, and the sums of its squares."""
        if not self._setup.ranks.shards_rows or self.plan.phase is Phase.GP:
            return []
        true_grads = self._true_grads()
        squares = sums_of_squares(true_grads) if true_grads else {}
        return [float(self._first_broken(squares, ()) is not None), *sums_of_own_rows(self._layers.values(), squares)]

    def _supply(self, shared: Shared) -> list[LayerBatch]:
        """Every source without a backward writes its layers' gradients; those layers are returned."""
        layers = self._layers.values()
        if self.plan.phase is Phase.GP and self._setup.options.immediate and any(entry.has_run for entry in layers):
            return []
        served = [entry for entry in layers if not entry.spec.needs_graph]
        supplied = [entry for entry in served if not entry.spec.needs_backward]
        self._write(supplied, shared)
        if self.failed:
            return []
        for entry in served:
            self._count(entry)
        return supplied

    def _write(self, layers: Sequence[LayerBatch], shared: Shared) -> None:
        """Let each source write the gradients of its layers; one that is not finite fails the batch."""
        for name, source in self._setup.sources.items():
            requests = [
                GradientRequest(
                    entry.layer, shared.features.get(entry.layer.name), shared.samples.get(entry.layer.name, 0)
                )
                for entry in layers
                if entry.spec.name == name
            ]
            if requests and not write_gradients(source, requests, self._timed, self.step_index):
                self.failed = True
        if self._setup.ranks.shards_rows and not all(is_always_finite(entry.source) for entry in layers):
            self.failed = self._setup.ranks.largest([self.failed], self._setup.device)[0] > 0

    def _update_now(self, entry: LayerBatch) -> None:
        """Step the optimizer for one layer: every other gradient is None, so nothing else moves."""
        if self.failed:
            return
        shared = share(self._setup, [entry], Findings())
        with _full_precision(self._setup.device):
            self._write([entry], shared)
        self._count(entry)
        for optimizer in self._setup.optimizers_of(entry.layer):
            optimizer.step()
        entry.layer.assign(None)

    def _count(self, entry: LayerBatch) -> None:
        """Count what the optimizer will find: a source that gave nothing was a skip."""
        self._progress.count(entry.spec.name if entry.has_gradient else "skip")

    def _step_heads(self) -> None:
        """Update the heads of local losses: they are no part of the model, and nobody else does."""
        if self._local is None or not self.resolved.is_local:
            return
        self._progress.count(
            "local", sum(entry.spec.is_local and entry.has_gradient for entry in self._layers.values())
        )
        if not self._local.step_heads(self._scaling.of_gradients):
            self._progress.count("nonfinite")

    # --- everything learns

    def _learn(self, shared: Shared, supplied: Sequence[LayerBatch]) -> dict[str, GradientAlignment]:
        """Let everything learn from the true gradients, once they are known to be finite."""
        true_grads = self._true_grads()
        learns = self._setup.learns and not self.plan.is_coarse
        if shared.findings.row_sums:
            of_all = self._check_row_sums(shared.findings.row_sums)
            squares = {name: of_all[name] for name in true_grads} if learns else {}
        else:
            squares = sums_of_squares(true_grads) if true_grads and learns else {}
            broken = self._first_broken(squares, supplied)
            if broken is not None:
                self._refuse_gradient(self._setup.name_of(broken))
        self._progress.count("backprop", len(true_grads))
        if not squares:
            return {}
        finite = {name: true_grads[name] for name, values in squares.items() if inf not in values}
        self._progress.count("nonfinite", len(true_grads) - len(finite))
        alignments: dict[str, GradientAlignment] = self._timed(
            partial(teach, self._setup, self._progress, shared.features, finite, squares)
        )
        return alignments

    def _true_grads(self) -> dict[str, Rows]:
        """The rows of true gradients."""
        return find_true_grads(self._setup, self._progress, self._layers.values())

    def _check_row_sums(self, sums: Sequence[float]) -> dict[str, tuple[float, ...]]:
        """The sums of squares over all rows of each layer; a gradient that is not finite raises on all ranks."""
        is_broken, *rest = sums
        squares = sums_of_all_rows(self._layers.values(), rest)
        if is_broken:
            layer = next((f"the weight of layer {name!r}" for name, values in squares.items() if inf in values), None)
            self._refuse_gradient(layer or "a parameter that belongs to no covered layer")
        return squares

    @property
    def _checks_finite(self) -> bool | None:
        """Whether true gradients are checked; None while that is not decided."""
        chosen = self._setup.options.stop_on_nonfinite
        return self._progress.checks_finite if chosen is None else chosen

    def _first_broken(
        self, squares: Mapping[str, tuple[float, ...]], supplied: Sequence[LayerBatch]
    ) -> nn.Parameter | None:
        """The first parameter whose true gradient is not finite, as far as they are checked.

        A GradScaler skips such a step by itself. So may another library, if it ran the backward.
        """
        parameters = self._setup.parameters()
        if self._checks_finite is None and self._forward.macs:
            self._progress.checks_finite = is_cheap(self._forward.macs, parameters)
            if not self._progress.checks_finite:
                logger.info(
                    "true gradients are not checked for NaN and infinity: that would take more than 1 %% of a batch; "
                    "stop_on_nonfinite=True checks them all the same"
                )
        if self._checks_finite is False or not self._ran_own_backward or self._scaling.is_enabled:
            return None
        known = [entry for name, entry in self._layers.items() if name in squares]
        checked = {id(parameter) for entry in (*known, *supplied) for parameter in entry.layer.parameters()}
        doubtful = [part for entry in known if inf in squares[entry.layer.name] for part in entry.layer.parameters()]
        return first_broken(doubtful, [part for part in parameters if id(part) not in checked])

    def _refuse_gradient(self, of_what: str) -> NoReturn:
        """Raise before anything is updated."""
        self._progress.count("nonfinite")
        raise NonFiniteError(
            f"the gradient of {of_what} is not finite at step {self.step_index} ({self.plan.phase.value}) although the "
            "loss is, and nothing was updated: lower the learning rate, clip gradients, or resume from the last "
            "checkpoint (stop_on_nonfinite=False applies it)"
        )

    # --- the batch is over

    def _discard(self) -> None:
        """Leave nothing for the optimizer to apply."""
        for parameter in self._setup.parameters():
            parameter.grad = None
        if self._local is not None:
            self._local.discard()

    def _advance(self, alignments: Mapping[str, GradientAlignment]) -> None:
        """Go on to the next step. After a failed batch it is plain backpropagation."""
        schedule = self._setup.schedule
        self._progress.falls_back = self.failed
        schedule.observe(self.step_index, alignments)
        if self.plan.trial_rates and not self.failed:
            found = [trials for source in self._setup.sources.values() for trials in source.take_trials().items()]
            schedule.observe_trials(self.step_index, average_trials(self._setup, dict(found)))
        if schedule.wants_order and self._current.call_order:
            schedule.observe_order(list(self._current.call_order))
        self._progress.step_index = self.step_index + 1

    def step(self) -> None:
        """Step every optimizer as this batch needs it: through a GradScaler only where gradients were scaled."""
        self._scaling.step()


def _refuse_shape(loss: Tensor) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss is {loss!r}, not a tensor: give backward the loss itself; a closure must return it")
    if loss.numel() != 1:
        raise ValueError(f"the loss has shape {tuple(loss.shape)}: reduce it to one number, for example by its mean")


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """No autocast inside: predictions are sums of small numbers, also where the forward runs in half precision."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else nullcontext()
