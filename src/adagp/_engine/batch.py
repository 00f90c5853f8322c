"""One batch under a plan, as data flows.

`__enter__` (plan in force, graph cut) -> the user's forward (hooks call
`on_layer_output`) -> `backward` (true gradients) -> `__exit__`: `_supply` (every other source writes its layer's
`.grad`), `_learn` (predictor, sources that remember, quality, schedule) -> the user's optimizer.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import chain
from math import inf, isfinite
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from adagp._engine.attachment import Attachment
from adagp._engine.capture.grad_output import deliver_grad_output
from adagp._engine.capture.recorder import ActivationRecorder
from adagp.errors import AdagpError
from adagp.layers import Layer
from adagp.layers.rows import Rows
from adagp.predictors import Features, TrainingExample
from adagp.quality import GradientAlignment
from adagp.schedules import Phase, SourceSpec
from adagp.sources import GradientRequest, Source

logger = logging.getLogger("adagp")


class NonFiniteError(AdagpError, RuntimeError):
    """The loss became NaN or infinite in a batch with true gradients; the message names the first layer concerned."""


class _HookTask(NamedTuple):
    """What the hook of one layer does in one batch."""

    source: Source
    uses_features: bool
    """Whether the layer's features are used in this batch; the same on all ranks."""
    records: bool
    """Whether the hook records its output; a compiled forward records all, so that it is compiled once."""
    requires_tensor: bool
    """Whether the layer must return a tensor."""


class Batch:
    """One batch under a plan; made by `AdaGP.batch`."""

    def __init__(self, attached: Attachment, scaler: GradScaler | None) -> None:
        """Nothing is in force before the `with` block."""
        self._attached = attached
        self._scaler = scaler
        self._recorder = ActivationRecorder(attached)
        self._samples: dict[str, list[int]] = {}  # of each micro-batch
        self._micro_batch = 0
        self._recording = False
        self._backward_done = False
        self._scaled = False
        self._ran_own_backward = False
        self._macs = 0
        self._restore = ExitStack()
        self.failed = False
        """Whether a prediction or the loss was not finite in GP; nothing was applied, or nothing more if immediate."""
        self.step_index = attached.step_index
        self.plan = attached.next_plan()
        self._cut: list[nn.Parameter] = []
        self._resolve()
        self._trained_on = () if attached.predictor is None else attached.predictor.layers_to_train_on()
        self._hook_tasks = self._plan_hooks()

    def _resolve(self) -> None:
        """Give every layer that is not frozen now its task."""
        self.resolved = self._attached.resolve(self.plan)
        self._layers = [layer for layer in self._attached.layers if layer.name in self.resolved.tasks]

    def _plan_hooks(self) -> dict[str, "_HookTask"]:
        """The task of each covered layer's hook, prepared before the forward, inside which every step is slow."""
        attached = self._attached
        tasks = {}
        for name, task in self.resolved.tasks.items():
            source, needs = attached.sources[task.source.name], task.source
            uses_features = (needs.needs_output and source.wants_output(name)) or (
                task.trains_predictor and name in self._trained_on
            )
            # Another choice of layers would be compiled again.
            records = uses_features or (attached.is_compiled and (needs.needs_output or task.trains_predictor))
            requires_tensor = records or task.trains_predictor or needs.needs_output or needs.needs_grad_output
            tasks[name] = _HookTask(source, uses_features, records, requires_tensor or needs.needs_forward)
        return tasks

    @property
    def cuts_graph(self) -> bool:
        """Whether some parameters do not require grad because of the plan."""
        return bool(self._cut)

    @property
    def needs_forward(self) -> bool:
        """Whether the forward pass must run: always, unless `skip_forward` and no source uses activations."""
        return not self._attached.skip_forward or self.resolved.needs_forward

    def __enter__(self) -> "Batch":
        """Put the plan in force: the graph is cut where no source needs it."""
        attached = self._attached
        if attached.open_batch is not None:
            raise RuntimeError("the last batch is still open: leave its `with` block before the next begins")
        if self.step_index != attached.step_index:
            raise RuntimeError(
                f"this batch was made for step {self.step_index}, and step {attached.step_index} is next: call "
                "gp.batch() when a batch begins, once for each"
            )
        if any(layer.weight.requires_grad != (layer.name in self.resolved.tasks) for layer in attached.layers):
            self._resolve()  # something was frozen or unfrozen since the batch was made
            self._hook_tasks = self._plan_hooks()
        self._refuse_leftovers()
        attached.ranks.warn_if_nothing_is_shared()  # at the first batch: a pipeline says before it that this is right
        if self.plan.phase is Phase.GP:
            self._restore.enter_context(torch.no_grad())
        else:
            self._cut_graph()
        attached.open_batch = self
        self._recording = True
        return self

    def _refuse_leftovers(self) -> None:
        """A gradient left from before would be mistaken for this batch's."""
        for group in self._attached.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if bool(_entries(parameter.grad).ne(0).any()):
                        raise RuntimeError(
                            "a gradient is left from an earlier backward: call optimizer.zero_grad() after each step; "
                            "to accumulate, call batch.backward several times inside one batch"
                        )
                    parameter.grad = None

    def _cut_graph(self) -> None:
        """Parameters without need of a graph do not require grad in this batch; autograd prunes the rest by itself."""
        for layer in self._layers:
            if not self._spec(layer).needs_graph:
                for parameter in layer.parameters():
                    self._without_grad(parameter)
        for module, parameter in self._without_source():
            if not self.resolved.trains(module):
                self._without_grad(parameter)

    def _spec(self, layer: Layer) -> SourceSpec:
        """What is known of the source of a layer."""
        return self.resolved.tasks[layer.name].source

    def _without_source(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trainable parameters no source serves in this batch: uncovered ones, and biases of frozen weights."""
        frozen = (layer for layer in self._attached.layers if layer.name not in self.resolved.tasks)
        biases = ((layer.name, layer.bias) for layer in frozen if layer.bias is not None)
        for module, parameter in chain(self._attached.uncovered, biases):
            if parameter.requires_grad:
                yield module, parameter

    def _without_grad(self, parameter: nn.Parameter) -> None:
        """Leave a parameter out of the graph until the batch ends; a frozen one is out of it anyway."""
        if not parameter.requires_grad:
            return
        if not self._attached.ranks.mixes_sources:
            raise ValueError(
                f"the plan of step {self.step_index} leaves parameters without backprop, and DistributedDataParallel "
                "would wait for their gradients: build it with find_unused_parameters=True (and static_graph=False)"
            )
        parameter.requires_grad_(False)
        self._cut.append(parameter)

    def backward(self, loss: Tensor) -> None:
        """True backward where the plan has one; may be called again for the next micro-batch of the same batch."""
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"the loss is {loss!r}, not a tensor: give backward the loss itself; a closure must return it"
            )
        self._recording = False
        try:
            if self.plan.phase is Phase.GP:
                self.failed = self.failed or not bool(torch.isfinite(loss).all())
            else:
                self._check_finite(loss)
                if loss.requires_grad:
                    self._scaled = self._scaler is not None
                    scaled = loss if self._scaler is None else self._scaler.scale(loss)
                    scaled.backward()
                self._backward_done = self._ran_own_backward = True
        finally:
            self._recording = True
        self.ran_forward()

    def ran_forward(self) -> None:
        """Say that the forward of a micro-batch is over, where the loss is elsewhere, as in a pipeline's stage."""
        self._recorder.end_forward()
        self._micro_batch += 1

    def ran_backward(self) -> None:
        """Say that somebody else, such as a pipeline's schedule, has run every backward of this batch."""
        self._backward_done = True

    def _check_finite(self, loss: Tensor) -> None:
        if not loss.requires_grad and self._needs_backward():
            raise RuntimeError("the loss depends on no trainable parameter: compute it from the model's output")
        if self._scaler is not None and self._scaler.is_enabled():
            return  # it skips the step by itself and lowers its scale
        if self._attached.ranks.any(not bool(torch.isfinite(loss).all()), loss.device):
            raise NonFiniteError(
                f"the loss is not finite at step {self.step_index} ({self.plan.phase.value}): lower the learning rate, "
                "clip gradients, or resume from the last checkpoint"
            )

    def _needs_backward(self) -> bool:
        """Whether anything waits for backward: a plan may give every parameter another source, or rest."""
        return self.resolved.needs_backward or any(self.resolved.trains(module) for module, _ in self._without_source())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Supply the other gradients and let everything learn."""
        attached = self._attached
        attached.open_batch = None
        self._restore.close()
        changed = [parameter for parameter in self._cut if parameter.requires_grad]
        for parameter in self._cut:
            parameter.requires_grad_(True)
        if kind is not None:
            return
        if changed:
            self._discard()
            raise RuntimeError(
                f"requires_grad of {attached.name_of(changed[0])} was switched on inside the batch of step "
                f"{self.step_index}, whose plan has another source for it: freeze and unfreeze between batches"
            )
        if self.plan.phase is not Phase.GP and not self._backward_done:
            raise RuntimeError(f"a {self.plan.phase.value} batch ended without batch.backward(loss)")
        with torch.no_grad(), _full_precision(attached.device):
            self._average_received()  # before the scaler looks for infinities, so that all ranks find the same
            features = self._shared_features()
            self._name_layers_without_gradient()
            supplied = self._supply(features)
            alignments = {} if self.failed else self._finish(features, supplied)
        if self.failed:
            self._discard()
            attached.counts["fallback"] += 1
        attached.force_backprop = self.failed
        attached.schedule.observe(self.step_index, alignments)
        if attached.schedule.wants_order and attached.call_order:
            attached.schedule.observe_order(list(attached.call_order))
        attached.step_index = self.step_index + 1

    def _finish(self, features: Mapping[str, Features], supplied: Sequence[Layer]) -> dict[str, GradientAlignment]:
        """Let everything learn from the true gradients, once they are known to be finite."""
        attached = self._attached
        self._unscale(supplied)
        true_grads = self._true_grads()
        squares = _squares(true_grads) if true_grads and attached.learns else {}
        self._stop_if_not_finite(squares, supplied)
        if true_grads:
            attached.counts["backprop"] += len(true_grads)
        alignments: dict[str, GradientAlignment] = attached.timed(lambda: self._learn(features, true_grads, squares))
        return alignments

    def _discard(self) -> None:
        """Leave nothing for the optimizer to apply."""
        for parameter in self._attached.parameters():
            parameter.grad = None

    def _shared_features(self) -> dict[str, Features]:
        """The features of each layer over all its calls and ranks; ranks also agree on whether this batch failed."""
        attached = self._attached
        self._recorder.end_forward()  # a loop without `backward` in GP has not said that its forward is over
        self._agree_on_events()
        # A rank that is compiled records more layers than another.
        features = self._recorder.features
        names = [name for name in features if self._hook_tasks[name].uses_features]
        outputs = attached.ranks.average([Features.mean(features[name]).output for name in names])
        return {name: Features(output) for name, output in zip(names, outputs, strict=True)}

    def _agree_on_events(self) -> None:
        """In one message: whether the batch failed anywhere, and that no layer ran on some ranks only.

        Such a layer would be recorded, learned from and dropped on those ranks alone.
        """
        attached = self._attached
        if attached.ranks.count == 1:
            return
        events = [self.failed, *(layer.name in self._samples for layer in self._layers)]
        failed, *ran = attached.ranks.totals([int(event) for event in events], attached.device)
        self.failed = failed > 0
        for layer, ranks in zip(self._layers, ran, strict=True):
            if 0 < ranks < attached.ranks.count:
                raise RuntimeError(
                    f"layer {layer.name!r} ran on {ranks} of {attached.ranks.count} ranks in this batch, and all must "
                    "do the same with it: exclude it, or let it run everywhere"
                )

    def _average_received(self) -> None:
        """Average over all ranks what sources made of a layer's `grad_output`: the reducer knows nothing of it."""
        attached = self._attached
        if attached.ranks.count == 1:
            return
        asking = [layer for layer in self._layers if self._spec(layer).needs_grad_output]
        parameters = [parameter for layer in asking for parameter in layer.parameters()]
        reached = attached.ranks.totals([parameter.grad is not None for parameter in parameters], attached.device)
        served = [parameter for parameter, ranks in zip(parameters, reached, strict=True) if ranks]
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in served]
        for parameter, grad, mean in zip(served, grads, attached.ranks.average(grads), strict=True):
            parameter.grad = grad.copy_(mean)

    def _true_grads(self) -> dict[str, Rows]:
        """The true rows of every layer that backpropagation served."""
        attached = self._attached
        true_grads: dict[str, Rows] = {}
        for layer in self._layers:
            if not self._spec(layer).needs_graph:
                continue
            rows = layer.gradient()
            if rows is None:
                continue
            if attached.sees_calls and layer.name not in self._samples:
                attached.drop(layer, "its weight is used without calling the module, so its output is never seen")
                continue
            true_grads[layer.name] = rows
        return true_grads

    def _name_layers_without_gradient(self) -> None:
        """Name the layers whose source waited for a backward, and got nothing."""
        attached = self._attached
        for layer in self._layers:
            if not self._spec(layer).needs_backward:
                continue
            if self._spec(layer).needs_graph:
                if self._ran_own_backward and layer.name in self._samples and layer.weight.grad is None:
                    self._warn_no_gradient(layer)
                continue
            if layer.bias is not None and not layer.bias.requires_grad:
                layer.bias.grad = None  # a frozen bias: the graph was cut there anyway, so nobody looked
            if layer.name not in self._samples and layer.name not in attached.called:
                attached.drop(
                    layer,
                    f"its module was not called at step {self.step_index}: either it was not reached, or its weight is "
                    "used without calling it, where no source can stand in; it is trained exactly from now on",
                )
            elif layer.name in self._samples and layer.weight.grad is None:
                self._warn_no_gradient(layer)
        attached.called |= self._samples.keys()

    def _warn_no_gradient(self, layer: Layer) -> None:
        self._attached.warn_once(
            f"no gradient at {layer.name}",
            "layer %r ran at step %d but no gradient came to its output, so %r had nothing to give and its weight was "
            "left alone: does the loss depend on it, and did a backward reach it?",
            layer.name,
            self.step_index,
            self._spec(layer).name,
        )

    def _unscale(self, supplied: Sequence[Layer]) -> None:
        """Let the scaler unscale what backward brought, and nothing else."""
        if self._scaler is None or not self._scaled:
            return
        kept = [(parameter, parameter.grad) for layer in supplied for parameter in layer.parameters()]
        for parameter, _ in kept:
            parameter.grad = None
        self._scaler.unscale_(self._attached.optimizer)
        for parameter, grad in kept:
            parameter.grad = grad

    def _stop_if_not_finite(self, squares: Mapping[str, tuple[float, ...]], supplied: Sequence[Layer]) -> None:
        """Raise before anything is updated where a true gradient is not finite.

        A scaler deals with that by itself, and so may whoever else ran the backward.
        """
        attached = self._attached
        scaled = self._scaler is not None and self._scaler.is_enabled()
        attached.settle_nonfinite(self._macs)
        if attached.stop_on_nonfinite is False or not self._ran_own_backward or scaled:
            return
        known = [layer for layer in self._layers if layer.name in squares]
        checked = {id(parameter) for layer in (*known, *supplied) for parameter in layer.parameters()}
        suspects = [part for layer in known if inf in squares[layer.name] for part in layer.parameters()]
        suspects += _not_finite([part for part in attached.parameters() if id(part) not in checked])
        broken = next((part for part in suspects if part.grad is not None and not _is_finite(part.grad)), None)
        if broken is not None:
            attached.counts["nonfinite"] += 1
            self._discard()
            raise NonFiniteError(
                f"the gradient of {attached.name_of(broken)} is not finite at step {self.step_index} "
                f"({self.plan.phase.value}) although the loss is, and nothing was updated: lower the learning rate, "
                "clip gradients, or resume from the last checkpoint (stop_on_nonfinite=False applies it)"
            )

    def _supply(self, features: Mapping[str, Features]) -> list[Layer]:
        """Every source without a backward writes its layers' gradients; those layers are returned."""
        attached = self._attached
        if self.plan.phase is Phase.GP and attached.immediate and self._samples:
            return []
        served = [layer for layer in self._layers if not self._spec(layer).needs_graph]
        without = [layer for layer in served if not self._spec(layer).needs_backward]
        samples = self._counted(without)
        for name, source in attached.sources.items():
            self._assign(
                source,
                [
                    GradientRequest(layer, features.get(layer.name), samples.get(layer.name, 0))
                    for layer in without
                    if self._spec(layer).name == name
                ],
            )
        if self.failed:
            for layer in without:
                layer.assign(None)
            return without
        for layer in served:
            self._count(layer)
        return without

    def _counted(self, layers: Sequence[Layer]) -> dict[str, int]:
        """How many samples went through each layer that wants to know, over all micro-batches and ranks."""
        attached = self._attached
        asking = [layer.name for layer in layers if self._spec(layer).needs_forward]
        totals = attached.ranks.totals([sum(self._samples.get(name, [])) for name in asking], attached.device)
        return dict(zip(asking, totals, strict=True))

    def _assign(self, source: Source, requests: Sequence[GradientRequest]) -> None:
        """Put what a source gives into the `.grad` of these layers."""
        if source.spec.needs_forward:  # where it did not come by, there is nothing to give
            for one in requests:
                one.layer.assign(None)
            requests = [one for one in requests if one.samples]

        def write() -> None:
            for one, rows in zip(requests, source.gradients(requests), strict=True):
                one.layer.assign(rows)

        if source.spec.needs_output and requests:
            self._attached.timed(write)
        else:
            write()
        if not source.always_finite:
            self._check_supplied(source, [one.layer for one in requests])

    def _check_supplied(self, source: Source, layers: Sequence[Layer]) -> None:
        """A batch in which a source gave something that is not finite has failed, and nothing of it is applied."""
        given = [(layer, part.grad) for layer in layers for part in layer.parameters() if part.grad is not None]
        if not given:
            return
        # A norm that is finite says so of all entries; one that is not may only have overflowed.
        suspects = [
            (layer, grad)
            for (layer, grad), norm in zip(given, _norms([grad for _, grad in given]), strict=True)
            if not isfinite(norm)
        ]
        name = next((layer.name for layer, grad in suspects if not bool(grad.isfinite().all())), None)
        if name is not None:
            what = "prediction" if source.spec.needs_output else f"gradient from {source.spec.name!r}"
            logger.warning("step %d: the %s for layer %r is not finite", self.step_index, what, name)
            self.failed = True
            for layer in layers:
                layer.assign(None)

    def _count(self, layer: Layer) -> None:
        """Count what the optimizer will find: a source that gave nothing was a skip."""
        self._attached.counts["skip" if layer.weight.grad is None else self._spec(layer).name] += 1

    def _learn(
        self, features: Mapping[str, Features], true_grads: Mapping[str, Rows], squares: Mapping[str, tuple[float, ...]]
    ) -> dict[str, GradientAlignment]:
        """The predictor and the sources that remember learn from what was true; quality is recorded."""
        attached = self._attached
        if not squares:
            return {}
        stateful = [source for source in attached.sources.values() if source.spec.remembers]
        finite = [name for name, values in squares.items() if inf not in values]
        if len(finite) < len(true_grads):
            attached.counts["nonfinite"] += len(true_grads) - len(finite)
        for source in stateful:
            source.learn({name: true_grads[name] for name in finite})
        if attached.predictor is None:
            return {}
        examples = [
            TrainingExample(attached.by_name[name], features.get(name), true_grads[name], squares[name])
            for name in finite
        ]
        if not examples:
            return {}
        with torch.enable_grad():
            alignments = attached.predictor.learn(examples)
        attached.quality.update(alignments, {name: attached.predictor.trust(name) for name in alignments})
        return alignments

    def step(self) -> None:
        """Step the optimizer as this batch needs it: through the GradScaler only where gradients were scaled."""
        if self._scaler is not None and self._scaled and not self.failed:
            self._scaler.step(self._attached.optimizer)
            self._scaler.update()
        else:
            self._attached.optimizer.step()

    def on_layer_output(self, layer: Layer, layer_input: Any, output: Any) -> Tensor | None:
        """Called by the forward hook of every covered layer; what is returned takes the place of the output."""
        task = self._hook_tasks.get(layer.name)
        if task is None:
            return None
        if task.requires_tensor:
            _refuse_output(layer, output)
        if self.plan.phase is Phase.GP and torch.is_grad_enabled():
            self._attached.warn_once(
                "grad mode",
                "step %d is a GP batch, but grad mode is on where layer %r runs: somebody switched it on inside the "
                "batch (automatic optimization in Lightning does), so the whole autograd graph is built, and its time "
                "and memory are not saved; run the forward without torch.enable_grad()",
                self.step_index,
                layer.name,
            )
        if self._recording:  # in backward, activation checkpointing runs layers a second time
            self._record(layer, output, task)
        if task.source.spec.needs_grad_output and torch.is_grad_enabled():
            if not isinstance(layer_input, Tensor):
                raise TypeError(
                    f"layer {layer.name!r} was called without a tensor as its input: give it another source"
                )
            passed: Tensor = deliver_grad_output(output, layer_input, partial(task.source.receive, layer))
            return passed
        return None

    def _record(self, layer: Layer, output: Any, task: "_HookTask") -> None:
        """Take in what a layer's forward shows."""
        now = self._attached.immediate and self.plan.phase is Phase.GP
        samples = self._samples.setdefault(layer.name, [])
        # Raise on the first batch, before any early update. A further micro-batch is a second use in GP, not in BP.
        if self._attached.immediate and len(samples) > (0 if now else self._micro_batch):
            raise RuntimeError(
                f"immediate=True: layer {layer.name!r} ran twice in one batch, and its weight cannot change between "
                "its uses: use immediate=False"
            )
        samples += [0] * (self._micro_batch + 1 - len(samples))
        if (
            self._attached.stop_on_nonfinite is None
            and isinstance(output, Tensor)
            and not torch.compiler.is_compiling()
        ):
            self._macs += output.numel() // layer.out * layer.weight.numel()
        if task.source.spec.needs_forward:  # a layer that runs twice in a micro-batch sees the same samples twice
            samples[-1] = max(samples[-1], layer.samples(output))
        if task.records:
            self._recorder.record(layer, output)
        if now:
            self._update_now(layer)

    def _update_now(self, layer: Layer) -> None:
        """Step the optimizer for one layer: every other gradient is None, so nothing else moves."""
        if self.failed:
            return
        attached = self._attached
        parts = self._recorder.features.get(layer.name) if self._hook_tasks[layer.name].uses_features else None
        features = Features(attached.ranks.average([parts[0].output])[0]) if parts else None
        samples = self._counted([layer]).get(layer.name, 0)
        with _full_precision(attached.device):
            self._assign(attached.sources[self._spec(layer).name], [GradientRequest(layer, features, samples)])
        self._count(layer)
        attached.optimizer.step()
        layer.assign(None)


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """No autocast inside: predictions are small sums of small numbers, whatever the user's forward runs in."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else nullcontext()


def _refuse_output(layer: Layer, output: Any) -> None:
    """What a layer returned must be a tensor whose batch can be averaged."""
    if not isinstance(output, Tensor):
        raise TypeError(f"layer {layer.name!r} returned {type(output).__name__}, not a tensor: exclude it")
    if not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(output):
        raise TypeError(
            f"layer {layer.name!r} ran under torch.vmap, which hides the batch that is to be averaged: run the model "
            "without vmap in this batch, call it outside of gp.batch() and gp.step(), or exclude the layer"
        )


def _entries(grad: Tensor) -> Tensor:
    """The entries of a gradient that may differ from zero, also of a sparse one."""
    return grad.coalesce().values() if grad.is_sparse else grad


def _is_finite(grad: Tensor) -> bool:
    return bool(_entries(grad).isfinite().all())


def _not_finite(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Those with a gradient whose norm is not finite; the entries themselves may be."""
    given = [parameter for parameter in parameters if parameter.grad is not None]
    norms = _norms([_entries(parameter.grad) for parameter in given if parameter.grad is not None])
    return [parameter for parameter, norm in zip(given, norms, strict=True) if not isfinite(norm)]


def _norms(grads: Sequence[Tensor]) -> list[float]:
    """Euclidean norms, fetched from the device at once; those of half precision are taken in single."""
    if not grads:
        return []
    types = {grad.dtype for grad in grads}
    found: dict[int, Tensor] = {}
    for dtype in types:
        places = [place for place, grad in enumerate(grads) if grad.dtype == dtype]
        wide = torch.promote_types(dtype, torch.float32)
        found |= zip(places, torch._foreach_norm([grads[place] for place in places], 2, dtype=wide), strict=True)
    norms: list[float] = torch.stack([found[place] for place in range(len(grads))]).tolist()
    return norms


def _squares(true_grads: Mapping[str, Rows]) -> dict[str, tuple[float, ...]]:
    """Sum of squares of every block, fetched from the device at once; NaN and overflow come out as infinity."""
    norms = torch.stack(torch._foreach_norm([block for rows in true_grads.values() for block in rows.blocks()]))
    values = iter(norms.square().nan_to_num(nan=torch.inf, posinf=torch.inf).tolist())
    return {name: tuple(next(values) for _ in rows.blocks()) for name, rows in true_grads.items()}
