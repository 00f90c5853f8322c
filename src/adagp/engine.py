"""The engine: `AdaGP` stands beside a model and an optimizer and runs one batch under a plan.

One batch, as data flows: `_begin` (plan in force, graph cut) -> the user's forward (hooks see outputs) -> `_backward`
(true gradients) -> `_supply` (every other source writes its layer's `.grad`) -> `_learn` (predictor, memories,
quality, schedule) -> the user's optimizer.
"""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from math import isfinite
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from adagp import predictor as predictors
from adagp import schedules
from adagp import sources as known_sources
from adagp.coverage import Coverage, find_layers, shared_layers, uncovered_parameters
from adagp.distributed import Ranks, refuse_sharded, unwrap
from adagp.layers import Layer
from adagp.predictor import Glance, Lesson, Predictor, Seen
from adagp.quality import Agreement, LayerQuality, QualityRecord
from adagp.rows import Rows
from adagp.schedules import Phase, Plan, Schedule
from adagp.sources import Asked, Source
from adagp.tap import tap

logger = logging.getLogger("adagp")

_FORMAT = 2

_GLANCES_SHARE = 1 / 16
"""Of the largest output so far: how much memory glances may take before the predictor reduces them."""


class NonFiniteError(RuntimeError):
    """The loss became NaN or infinite in a batch with true gradients; the message names the first layer concerned."""


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
        refuse_sharded(model)
        self.model, self.optimizer = model, optimizer
        self.schedule = schedule if isinstance(schedule, Schedule) else schedules.from_function(schedule)
        self._immediate, self._skip_forward, self._timer = immediate, skip_forward, timer
        self.predictor_seconds = 0.0
        self.step_index = 0
        self._counts: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()  # of each phase
        self._bytes: Counter[str] = Counter()
        self._quality = QualityRecord()
        self._ranks = Ranks(model)
        self._layers, self._coverage = self._find(include, exclude)
        self._signature = {layer.name: [layer.out, layer.fan_in, type(layer.kind).__name__] for layer in self._layers}
        self._dropped: dict[str, str] = {}
        self._device = self._layers[0].weight.device
        self._by_name = {layer.name: layer for layer in self._layers}
        self._shared = shared_layers(unwrap(model), self._layers)
        self._uncovered = list(uncovered_parameters(unwrap(model), self._layers))
        self._predictor = predictors.build(predictor) if isinstance(predictor, str) else predictor
        if self._predictor is not None:
            self._predictor.attach(self._layers)
        self._sources = known_sources.build(self.schedule.sources, self._predictor, sources or {})
        self._refuse_what_cannot_work()
        self._batch: Batch | None = None
        self._force_backprop = False
        # Before any other hook, so that what is seen is what the layer itself computed.
        self._hooks = [
            layer.module.register_forward_hook(_Hook(self, layer), prepend=True, with_kwargs=True)
            for layer in self._layers
        ]
        if self._predictor is not None and "predicted" not in self.schedule.sources:
            logger.info("no plan asks for predictions: the predictor only watches; predictor=None saves its cost")

    def _find(self, include: str | None, exclude: str | None) -> tuple[list[Layer], Coverage]:
        optimized = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        trained = {id(parameter) for parameter in optimized}
        if not any(id(parameter) in trained for parameter in self.model.parameters()):
            raise ValueError(
                "the optimizer holds none of the model's parameters: build it from model.parameters(), "
                "after moving the model to its device"
            )
        layers, coverage = find_layers(unwrap(self.model), optimized, include, exclude)
        if not layers:
            raise ValueError(
                f"the model has no layer that adagp can cover:\n{coverage}\n"
                "register its layer types with layers.register"
            )
        return layers, coverage

    def _refuse_what_cannot_work(self) -> None:
        devices = {layer.weight.device for layer in self._layers}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise ValueError(f"the model's layers are on several devices ({names}): one AdaGP serves one device")
        if isinstance(self.optimizer, torch.optim.LBFGS) and (self._immediate or self._skip_forward):
            raise ValueError(
                "LBFGS evaluates the loss several times a step, with all gradients: use immediate=False and "
                "skip_forward=False"
            )
        if not self._immediate:
            return
        if self._shared:
            raise ValueError(
                f"immediate=True: a parameter of layer {self._shared[0]!r} belongs to another module too, and what is "
                "used twice cannot change between its uses: use immediate=False"
            )

    # ---- the user's side

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
            self.step_index = first
            self.optimizer.zero_grad(set_to_none=True)
            loss = self._evaluate(closure, None)[1]
            return float("nan") if loss is None else float(loss)

        return torch.tensor(self.optimizer.step(evaluate))

    def _evaluate(self, closure: Callable[[], Tensor], scaler: GradScaler | None) -> tuple["Batch", Tensor | None]:
        batch = self.batch(scaler=scaler)
        loss = None
        with batch:
            if batch.needs_forward:
                loss = closure()
                self._backward(batch, loss, closure)
        if batch.failed:
            self.optimizer.zero_grad(set_to_none=True)
            self.step_index = batch.step_index
            self._force_backprop = True
            batch = self.batch(scaler=scaler)
            with batch:
                loss = closure()
                self._backward(batch, loss, closure)
        return batch, None if loss is None else loss.detach()

    def _backward(self, batch: "Batch", loss: Tensor, closure: Callable[[], Tensor]) -> None:
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
            for layer in self._layers
        ]
        with torch.no_grad():
            closure()
        for hook in hooks:
            hook.remove()
        if not found:
            return "the output of every covered layer is finite"
        return f"layer {found[0]!r} is the first whose output is not finite"

    def batch(self, scaler: GradScaler | None = None, *, final: bool = True) -> "Batch":
        """Open one batch of the schedule, for loops that need their own hands; use it in a `with` statement.

        Several `backward` calls inside accumulate, as micro-batches do. When the block ends every `.grad` is in place.

        Args:
            scaler: A GradScaler, used only where there is a true backward.
            final: False where another part of the same batch follows with an update of its own: the schedule then
                stays at its step.
        """
        if not self._hooks:
            raise RuntimeError("this AdaGP was removed from its model: build a new one")
        return Batch(self, scaler, final)

    def next_plan(self) -> Plan:
        """The plan of the next batch; asking changes nothing."""
        if self._force_backprop:
            return Plan(Phase.BP, "backprop", note="fallback")
        return self.schedule(self.step_index)

    def coverage(self) -> Coverage:
        """Which layers are covered, which are not, and why."""
        return self._coverage

    def quality(self) -> dict[str, LayerQuality]:
        """Running figures of each layer's predictions against its true gradients, in the order of the model."""
        found = self._quality.report()
        return {layer.name: found[layer.name] for layer in self._layers if layer.name in found}

    def counts(self) -> dict[str, int]:
        """How many layer updates each source supplied.

        Events are counted beside: `fallback` (a GP batch redone or followed by BP because of a NaN) and `nonfinite`
        (a layer's true gradient that was not finite, so that nothing learned from it).
        """
        return dict(self._counts)

    def bytes_per_batch(self) -> dict[str, float]:
        """What this rank sends in a batch of each phase, on average; 0 in one process.

        Counted is what goes into the messages, of DistributedDataParallel and of `adagp`. How often a network then
        carries each byte depends on the algorithm: a ring over n ranks, 2 (n - 1) / n times.
        """
        return {phase: self._bytes[phase] / batches for phase, batches in self._batches.items()}

    def remove(self) -> None:
        """Take every hook out of the model; it is then as it was before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, in plain types and tensors, so that it loads with `weights_only=True`."""
        state = {
            "format": _FORMAT,
            "setup": self._setup(),
            "layers": dict(self._signature),
            "dropped": dict(self._dropped),
            "step_index": self.step_index,
            "force_backprop": self._force_backprop,
            "counts": dict(self._counts),
            "quality": self._quality.state_dict(),
            "predictor": None if self._predictor is None else self._predictor.state_dict(),
            "sources": {name: source.state_dict() for name, source in self._sources.items()},
            "schedule": self.schedule.state_dict(),
            "predictor_seconds": self.predictor_seconds,
            "batches": dict(self._batches),
            "bytes": dict(self._bytes),
        }
        return copy.deepcopy(state)  # a snapshot: training goes on in place

    def _setup(self) -> dict[str, str]:
        """What a state can only be loaded beside."""
        return {
            "predictor": type(self._predictor).__name__,
            "schedule": type(self.schedule).__name__,
            "sources": ", ".join(f"{name}{source.options()}" for name, source in sorted(self._sources.items())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; ValueError says in what the saved model or set-up differs from this one."""
        if state.get("format") != _FORMAT:
            raise ValueError(f"this is no AdaGP state of format {_FORMAT}: its keys are {sorted(map(str, state))[:8]}")
        mine = self._signature
        saved = {name: list(shape) for name, shape in state["layers"].items()}
        if mine != saved:
            names = sorted(name for name in {*mine, *saved} if mine.get(name) != saved.get(name))
            first = names[0]
            raise ValueError(
                f"the state is of another model: {len(names)} layers differ, the first is {first!r} "
                f"(saved rows {saved.get(first)}, here {mine.get(first)}); load it beside the model it was saved with, "
                "in the same memory format"
            )
        for part, here in self._setup().items():
            if state["setup"].get(part) != here:
                raise ValueError(
                    f"the state was saved with another {part} ({state['setup'].get(part)}, here {here}): "
                    "build AdaGP with the same one"
                )
        if self._predictor is not None:
            self._predictor.load_state_dict(state["predictor"])
        for name, reason in state["dropped"].items():
            if name in self._by_name:
                self._drop(self._by_name[name], reason)
        self.step_index = state["step_index"]
        self._force_backprop = state["force_backprop"]
        self._counts = Counter(state["counts"])
        self._quality.load_state_dict(state["quality"])
        for name, source in self._sources.items():
            source.load_state_dict(state["sources"][name])
        self.schedule.load_state_dict(state["schedule"])
        self.predictor_seconds = state["predictor_seconds"]
        self._batches, self._bytes = Counter(state["batches"]), Counter(state["bytes"])

    # ---- what a batch asks of the engine

    def _resolve(self, plan: Plan) -> dict[str, str]:
        """The source of every covered layer under a plan, checked."""
        unknown = plan.used_sources() - self._sources.keys()
        if "predicted" in unknown:
            raise ValueError("the plan asks for 'predicted' but predictor=None: give AdaGP a predictor")
        if unknown:
            raise ValueError(
                f"the plan of step {self.step_index} asks for {sorted(unknown)}, which the schedule did not announce; "
                f"announced: {sorted(self._sources)} (see schedules.from_function)"
            )
        strangers = plan.overrides.keys() - {row.layer for row in self._coverage.rows}
        if strangers:
            raise ValueError(
                f"the plan of step {self.step_index} names {sorted(strangers)}, which the model has not; its layers "
                f"are: {', '.join(self._signature)}"
            )
        for name, source in plan.overrides.items():
            allowed = ("skip",) if plan.phase is Phase.GP else ("backprop", "skip")
            if name not in self._signature and source not in allowed:
                raise ValueError(
                    f"the plan of step {self.step_index} ({plan.phase.value}) gives {name!r} {source!r}, but it is not "
                    f"covered: it can have {' or '.join(allowed)}"
                )
        chosen = {layer.name: plan.source(layer.name) for layer in self._layers}
        if plan.phase is Phase.GP:
            graphs = [name for name, source in chosen.items() if self._sources[source].needs_backward]
            if graphs:
                raise ValueError(f"a GP plan has no backward, but layer {graphs[0]!r} asks for it: use Phase.BP")
        self._refuse_layers(chosen)
        return chosen

    def _refuse_layers(self, chosen: Mapping[str, str]) -> None:
        """A source may not be able to serve a layer."""
        for name, source in chosen.items():
            reason = self._sources[source].refuse(self._by_name[name])
            if not reason and self._sources[source].needs_error and name in self._shared:
                reason = (
                    f"{source} sees one module's share of the gradient, and a parameter of layer {name!r} belongs to "
                    "another module too: give it another source"
                )
            if reason:
                raise ValueError(f"the plan of step {self.step_index} asks for what cannot be: {reason}")

    def _drop(self, layer: Layer, reason: str) -> None:
        """Cover a layer no longer, because the first batches showed that its output is never seen."""
        logger.warning("layer %r is not covered: %s", layer.name, reason)
        self._dropped[layer.name] = reason
        self._layers.remove(layer)
        del self._by_name[layer.name]
        self._uncovered += [(layer.name, parameter) for parameter in layer.parameters()]
        self._coverage = self._coverage.without(layer.name, reason)

    def _timed(self, work: Callable[[], Any]) -> Any:
        if self._timer is None:
            return work()
        start = self._timer()
        result = work()
        self.predictor_seconds += self._timer() - start
        return result


class _Duty(NamedTuple):
    """What the hook of one layer does in one batch."""

    source: Source
    watched: bool
    wants_tensor: bool


class Batch:
    """One batch under a plan; made by `AdaGP.batch`."""

    def __init__(self, engine: AdaGP, scaler: GradScaler | None, final: bool) -> None:
        """Nothing is in force before the `with` block."""
        self._engine = engine
        self._scaler = scaler
        self._final = final
        self._glances: list[tuple[Layer, Glance]] = []
        self._glanced_bytes = self._largest_output = 0
        self._seen: dict[str, list[Seen]] = {}
        self._samples: dict[str, list[int]] = {}  # of each micro-batch
        self._micro_batch = 0
        self._recording = False
        self._backward_done = False
        self._scaled = False
        self._sends_buffers = False
        self._restore = ExitStack()
        self.failed = False
        """Whether a prediction or the loss was not finite in GP; nothing was applied, or nothing more if immediate."""
        self.step_index = engine.step_index
        self.plan = engine.next_plan()
        self.source = engine._resolve(self.plan)
        self._duties = self._hook_duties()

    def _hook_duties(self) -> dict[str, "_Duty"]:
        """What the hook of each covered layer does, settled before the forward: inside it every step is felt."""
        engine = self._engine
        studied = () if engine._predictor is None else engine._predictor.studied()
        duties = {}
        for name, chosen in self.source.items():
            source = engine._sources[chosen]
            watched = engine._predictor is not None and (
                source.needs_output or (source.needs_graph and name in studied)
            )
            predictable = engine._predictor is not None and source.needs_graph
            wants_tensor = watched or predictable or source.needs_error or source.needs_forward
            duties[name] = _Duty(source, watched, wants_tensor)
        return duties

    @property
    def needs_forward(self) -> bool:
        """Whether the forward pass must run: always, unless `skip_forward` and no source looks at an output."""
        engine = self._engine
        chosen = (engine._sources[source] for source in self.source.values())
        return (
            not engine._skip_forward
            or self.plan.phase is not Phase.GP
            or any(source.needs_output or source.needs_forward for source in chosen)
        )

    def __enter__(self) -> "Batch":
        """Put the plan in force: the graph is cut where no source needs it."""
        engine = self._engine
        if engine._batch is not None:
            raise RuntimeError("the last batch is still open: leave its `with` block before the next begins")
        self._refuse_leftovers()
        engine._ranks.warn_if_nothing_is_shared()  # at the first batch: a pipeline says before it that this is right
        self._sends_buffers = engine._ranks.sends_buffers()
        if self.plan.phase is Phase.GP:
            self._restore.enter_context(torch.no_grad())
        else:
            self._cut_graph()
        engine._batch = self
        self._recording = True
        return self

    def _refuse_leftovers(self) -> None:
        """A gradient left from before would be mistaken for this batch's."""
        for group in self._engine.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if bool(parameter.grad.ne(0).any()):
                        raise RuntimeError(
                            "a gradient is left from an earlier backward: call optimizer.zero_grad() after each step; "
                            "to accumulate, call batch.backward several times inside one batch"
                        )
                    parameter.grad = None

    def _cut_graph(self) -> None:
        """Parameters without need of a graph do not require grad in this batch; autograd prunes the rest by itself."""
        engine = self._engine
        for layer in engine._layers:
            if not engine._sources[self.source[layer.name]].needs_graph:
                for parameter in layer.parameters():
                    self._without_grad(parameter)
        for module, parameter in engine._uncovered:
            if self.plan.source_of_uncovered(module) != "backprop":
                self._without_grad(parameter)

    def _without_grad(self, parameter: nn.Parameter) -> None:
        if not self._engine._ranks.mixes_sources:
            raise ValueError(
                f"the plan of step {self.step_index} leaves parameters without backprop, and DistributedDataParallel "
                "would wait for their gradients: build it with find_unused_parameters=True (and static_graph=False)"
            )
        parameter.requires_grad_(False)
        self._restore.callback(parameter.requires_grad_, True)

    def backward(self, loss: Tensor) -> None:
        """True backward where the plan has one; may be called again for the next micro-batch of the same batch."""
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
                self._backward_done = True
        finally:
            self._recording = True
        self.ran_forward()

    def ran_forward(self) -> None:
        """Say that the forward of a micro-batch is over, where its loss is not at hand, as in a pipeline's stage."""
        self._look()
        self._largest_output = 0
        self._micro_batch += 1

    def ran_backward(self) -> None:
        """Say that somebody else, such as a pipeline's schedule, has run every backward of this batch."""
        self._backward_done = True

    def _check_finite(self, loss: Tensor) -> None:
        if not loss.requires_grad and self._needs_backward():
            raise RuntimeError("the loss depends on no trainable parameter: compute it from the model's output")
        if self._scaler is not None and self._scaler.is_enabled():
            return  # it skips the step by itself and lowers its scale
        if self._engine._ranks.any(not bool(torch.isfinite(loss).all()), loss.device):
            raise NonFiniteError(
                f"the loss is not finite at step {self.step_index} ({self.plan.phase.value}): lower the learning rate, "
                "clip gradients, or resume from the last checkpoint"
            )

    def _needs_backward(self) -> bool:
        """Whether anything waits for backward: a plan may give every parameter another source, or rest."""
        engine = self._engine
        return any(engine._sources[source].needs_backward for source in self.source.values()) or any(
            self.plan.source_of_uncovered(module) == "backprop" for module, _ in engine._uncovered
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Supply the other gradients and let everything learn."""
        engine = self._engine
        engine._batch = None
        self._restore.close()
        if kind is not None:
            return
        if self.plan.phase is not Phase.GP and not self._backward_done:
            raise RuntimeError(f"a {self.plan.phase.value} batch ended without batch.backward(loss)")
        with torch.no_grad():
            self._average_received()  # before the scaler looks for infinities, so that all ranks see the same
        if self._scaler is not None and self._scaled:
            self._scaler.unscale_(engine.optimizer)
        with torch.no_grad(), _full_precision(engine._device):
            seen = self._agreed()
            truths = self._truths()
            self._supply(seen)
            agreements = engine._timed(lambda: self._learn(seen, truths))
        if self.failed:
            engine._counts["fallback"] += 1
            engine._force_backprop = True
        else:
            engine._force_backprop = False
        engine.schedule.observe(self.step_index, agreements)
        self._count_bytes()
        engine.step_index = self.step_index + self._final

    def _count_bytes(self) -> None:
        engine, phase = self._engine, self.plan.phase.value
        gradients = 0 if self.plan.phase is Phase.GP else self._micro_batch
        # Buffers go before the first forward if it follows one with a graph, and so before each further one with one.
        buffers = (self._sends_buffers and self._micro_batch > 0) + max(gradients - 1, 0)
        engine._batches[phase] += 1
        engine._bytes[phase] += engine._ranks.take_bytes() + engine._ranks.wrapper_bytes(buffers, gradients)

    def _agreed(self) -> dict[str, Seen]:
        """What each layer saw, over all its calls and all ranks; ranks also agree on whether this batch failed."""
        engine = self._engine
        self._look()  # a loop without `backward` in GP has not said that its forward is over
        self._agree_on_events()
        means = [Seen.mean(parts) for parts in self._seen.values()]
        outputs = engine._ranks.average([mean.output for mean in means])
        return {name: Seen(output) for name, output in zip(self._seen, outputs, strict=True)}

    def _agree_on_events(self) -> None:
        """In one message: whether the batch failed anywhere, and that no layer ran on some ranks only.

        Such a layer would be seen, learned and dropped there alone.
        """
        engine = self._engine
        if engine._ranks.count == 1:
            return
        events = [self.failed, *(layer.name in self._samples for layer in engine._layers)]
        failed, *ran = engine._ranks.totals([int(event) for event in events], engine._device)
        self.failed = failed > 0
        for layer, ranks in zip(engine._layers, ran, strict=True):
            if 0 < ranks < engine._ranks.count:
                raise RuntimeError(
                    f"layer {layer.name!r} ran on {ranks} of {engine._ranks.count} ranks in this batch, and all must "
                    "do the same with it: exclude it, or let it run everywhere"
                )

    def _average_received(self) -> None:
        """What sources made of a layer's error, over all ranks: the reducer saw nothing of it."""
        engine = self._engine
        if engine._ranks.count == 1:
            return
        asking = [layer for layer in engine._layers if engine._sources[self.source[layer.name]].needs_error]
        parameters = [parameter for layer in asking for parameter in layer.parameters()]
        reached = engine._ranks.totals([parameter.grad is not None for parameter in parameters], engine._device)
        served = [parameter for parameter, ranks in zip(parameters, reached, strict=True) if ranks]
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in served]
        for parameter, grad, mean in zip(served, grads, engine._ranks.average(grads), strict=True):
            parameter.grad = grad.copy_(mean)

    def _truths(self) -> dict[str, Rows]:
        """The true rows of every layer that backpropagation served."""
        engine = self._engine
        truths: dict[str, Rows] = {}
        for layer in list(engine._layers):
            if self.source[layer.name] != "backprop":
                continue
            rows = layer.gradient()
            if rows is None:
                continue
            if engine._predictor is not None and layer.name not in self._samples:
                engine._drop(layer, "its weight is used without calling the module, so its output is never seen")
                continue
            truths[layer.name] = rows
            engine._counts["backprop"] += 1
        return truths

    def _supply(self, seen: Mapping[str, Seen]) -> None:
        """Every source without a backward writes its layers' gradients; the parameters that rest get None."""
        engine = self._engine
        if self.plan.phase is Phase.GP and engine._immediate and self._samples:
            return
        served = [layer for layer in engine._layers if self.source[layer.name] != "backprop"]
        without = [layer for layer in served if not engine._sources[self.source[layer.name]].needs_backward]
        samples = self._counted([layer.name for layer in without])
        for name, source in engine._sources.items():
            self._assign(
                source,
                [
                    Asked(layer, seen.get(layer.name), samples.get(layer.name, 0))
                    for layer in without
                    if self.source[layer.name] == name
                ],
            )
        if self.failed:
            for layer in without:
                layer.assign(None)
            return
        for layer in served:
            self._count(layer)

    def _counted(self, names: list[str]) -> dict[str, int]:
        """How many samples went through each layer that wants to know, over all micro-batches and ranks."""
        engine = self._engine
        asking = [name for name in names if engine._sources[self.source[name]].needs_forward]
        totals = engine._ranks.totals([sum(self._samples.get(name, [])) for name in asking], engine._device)
        return dict(zip(asking, totals, strict=True))

    def _assign(self, source: Source, asked: Sequence[Asked]) -> None:
        """Put what a source gives into the `.grad` of these layers."""
        if source.needs_forward:  # where it did not come by, there is nothing to give
            for one in asked:
                one.layer.assign(None)
            asked = [one for one in asked if one.samples]

        def write() -> None:
            for one, rows in zip(asked, source.gradients(asked), strict=True):
                one.layer.assign(rows)

        if not source.needs_output:
            write()
        elif asked:
            self._engine._timed(write)
            self._check_predictions([one.layer for one in asked])

    def _check_predictions(self, layers: Sequence[Layer]) -> None:
        """A batch with a prediction that is not finite has failed, and nothing of it is applied."""
        given = [(layer, part.grad) for layer in layers for part in layer.parameters() if part.grad is not None]
        if not given:
            return
        # A norm is finite only if all entries are; that of half precision would overflow by itself.
        norms = torch._foreach_norm([grad if grad.dtype.itemsize > 2 else grad.float() for _, grad in given])
        sizes = torch.stack(norms).tolist()
        if not all(map(isfinite, sizes)):
            name = next(layer.name for (layer, _), size in zip(given, sizes, strict=True) if not isfinite(size))
            logger.warning("step %d: the prediction for layer %r is not finite", self.step_index, name)
            self.failed = True
            for layer in layers:
                layer.assign(None)

    def _count(self, layer: Layer) -> None:
        """Count what the optimizer will find: a source that gave nothing was a skip."""
        self._engine._counts["skip" if layer.weight.grad is None else self.source[layer.name]] += 1

    def _learn(self, seen: Mapping[str, Seen], truths: Mapping[str, Rows]) -> dict[str, Agreement]:
        """The predictor and the sources that remember learn from what was true; quality is recorded."""
        engine = self._engine
        remembering = [source for source in engine._sources.values() if source.remembers]
        if not truths or (engine._predictor is None and not remembering):
            return {}
        squares = _squares(truths)
        sound = [name for name, values in squares.items() if all(value < float("inf") for value in values)]
        if len(sound) < len(truths):
            engine._counts["nonfinite"] += len(truths) - len(sound)
        for source in remembering:
            source.learn({name: truths[name] for name in sound})
        if engine._predictor is None:
            return {}
        lessons = [Lesson(engine._by_name[name], seen.get(name), truths[name], squares[name]) for name in sound]
        if not lessons:
            return {}
        with torch.enable_grad():
            agreements = engine._predictor.learn(lessons)
        engine._quality.update(agreements, {name: engine._predictor.trust(name) for name in agreements})
        return agreements

    def step(self) -> None:
        """Step the optimizer as this batch needs it: through the GradScaler only where gradients were scaled."""
        if self._scaler is not None and self._scaled:
            self._scaler.step(self._engine.optimizer)
            self._scaler.update()
        else:
            self._engine.optimizer.step()

    def see(self, layer: Layer, layer_input: Any, output: Any) -> Tensor | None:
        """Called by the forward hook of every covered layer; what is returned takes the place of the output."""
        duty = self._duties.get(layer.name)
        if duty is None:
            return None
        if duty.wants_tensor and not isinstance(output, Tensor):
            raise TypeError(f"layer {layer.name!r} returned {type(output).__name__}, not a tensor: exclude it")
        if self._recording:  # in backward, activation checkpointing runs layers a second time
            self._record(layer, output, duty)
        if duty.source.needs_error and torch.is_grad_enabled():
            if not isinstance(layer_input, Tensor):
                raise TypeError(
                    f"layer {layer.name!r} was called without a tensor as its input: give it another source"
                )
            tapped: Tensor = tap(output, layer_input, partial(self._deliver, layer, duty.source))
            return tapped
        return None

    def _deliver(self, layer: Layer, source: Source, layer_input: Tensor, error: Tensor) -> None:
        """Hand a layer's error to its source: what `backward` brings, not what the user's own autograd calls do."""
        if not self._recording:
            source.receive(layer, layer_input, error)

    def _record(self, layer: Layer, output: Any, duty: "_Duty") -> None:
        """Take in what a layer's forward shows."""
        now = self._engine._immediate and self.plan.phase is Phase.GP
        samples = self._samples.setdefault(layer.name, [])
        # Known at the first batch, before anything is updated too early; a next micro-batch is no second use but in GP.
        if self._engine._immediate and len(samples) > (0 if now else self._micro_batch):
            raise RuntimeError(
                f"immediate=True: layer {layer.name!r} ran twice in one batch, and its weight cannot change between "
                "its uses: use immediate=False"
            )
        samples += [0] * (self._micro_batch + 1 - len(samples))
        if duty.source.needs_forward:  # a layer that runs twice in a micro-batch sees the same samples twice
            samples[-1] = max(samples[-1], layer.samples(output))
        if duty.watched:
            self._watch(layer, output)
        if now:
            self._update_now(layer)

    def _watch(self, layer: Layer, output: Tensor) -> None:
        """Let the predictor glance at an output, and see what it glanced at before that takes noticeable memory."""
        engine = self._engine
        assert engine._predictor is not None
        glance = engine._timed(partial(engine._predictor.glance, layer, output))
        self._glances.append((layer, glance))
        if engine._immediate or torch.compiler.is_compiling():  # a compiler arranges the work itself
            self._look()
            return
        self._glanced_bytes += glance.total.nbytes
        self._largest_output = max(self._largest_output, output.nbytes)
        if self._glanced_bytes > self._largest_output * _GLANCES_SHARE:
            self._look()

    def _look(self) -> None:
        """Let the predictor see what it glanced at."""
        engine = self._engine
        if not self._glances:
            return
        assert engine._predictor is not None
        seen = engine._timed(partial(engine._predictor.see, self._glances))
        for (layer, _), one in zip(self._glances, seen, strict=True):
            self._seen.setdefault(layer.name, []).append(one)
        self._glances, self._glanced_bytes = [], 0

    def _update_now(self, layer: Layer) -> None:
        """Step the optimizer for one layer: every other gradient is None, so nothing else moves."""
        if self.failed:
            return
        engine = self._engine
        parts = self._seen.get(layer.name)
        seen = Seen(engine._ranks.average([parts[0].output])[0]) if parts else None
        samples = self._counted([layer.name]).get(layer.name, 0)
        with _full_precision(engine._device):
            self._assign(engine._sources[self.source[layer.name]], [Asked(layer, seen, samples)])
        self._count(layer)
        engine.optimizer.step()
        layer.assign(None)


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """No autocast inside: predictions are small sums of small numbers, whatever the user's forward runs in."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else nullcontext()


def _squares(truths: Mapping[str, Rows]) -> dict[str, tuple[float, ...]]:
    """Sum of squares of every block, fetched from the device at once; NaN and overflow come out as infinity."""
    norms = torch.stack(torch._foreach_norm([block for rows in truths.values() for block in rows.blocks()]))
    values = iter(norms.square().nan_to_num(nan=torch.inf, posinf=torch.inf).tolist())
    return {name: tuple(next(values) for _ in rows.blocks()) for name, rows in truths.items()}


class _Hook:
    """The forward hook of one layer. Copies of the model (deepcopy, pickle) carry it along without effect."""

    def __init__(self, engine: AdaGP, layer: Layer) -> None:
        self._engine, self._layer = engine, layer

    def __call__(self, module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> Tensor | None:
        if self._engine._batch is not None and module is self._layer.module:
            return self._engine._batch.see(self._layer, inputs[0] if inputs else named.get("input"), output)
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Hook":
        return self

    def __reduce__(self) -> tuple[type["_NoHook"], tuple[()]]:
        return _NoHook, ()


class _NoHook:
    """What a `_Hook` becomes in a pickled model."""

    def __call__(self, module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> None:
        """Do nothing."""
