"""What an `AdaGP` and its batches share: the layers, where their gradients come from, and what is known so far."""

import copy
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from adagp import predictors
from adagp import sources as known_sources
from adagp.distributed.ranks import Ranks, unwrap
from adagp.layers import Layer
from adagp.layers.coverage import Coverage, find_layers, owners, present_coverage, shared_layers, uncovered_parameters
from adagp.predictors import Predictor
from adagp.quality import QualityRecord
from adagp.schedules import Phase, Plan, ResolvedPlan, Schedule, resolve
from adagp.sources import Source

if TYPE_CHECKING:
    from adagp._engine.batch import Batch

logger = logging.getLogger("adagp")

_FORMAT = 3
_CHEAP_CHECK = 400
"""Multiply-adds of a forward per parameter from which a look at all gradients takes less than 1 % of a batch.

Measured: 0.1 to 0.4 % for CNNs, which have thousands; 2.5 % for a language model on 256 tokens, which has 128.
"""
_LOW_COVERAGE = 0.5
"""Share of the trained parameters below which attaching warns."""


class Attachment:
    """The inside of an `AdaGP`, open to its batches and pipelines and to nobody else."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule,
        predictor: str | Predictor | None,
        sources: Mapping[str, Source],
        include: str | None,
        exclude: str | None,
        immediate: bool,
        skip_forward: bool,
        stop_on_nonfinite: bool | None,
        timer: Callable[[], float] | None,
    ) -> None:
        """Find the layers and check that everything fits together; see `AdaGP` for the arguments."""
        self.optimizer, self.schedule = optimizer, schedule
        self.immediate, self.skip_forward, self.stop_on_nonfinite = immediate, skip_forward, stop_on_nonfinite
        self._timer = timer
        self.predictor_seconds = 0.0
        self.step_index = 0
        self.force_backprop = False
        self.open_batch: Batch | None = None
        self.is_compiled = False
        """Whether the forward was seen to be compiled: hooks must then do the same in every batch of a phase."""
        self.counts: Counter[str] = Counter()
        self.quality = QualityRecord()
        self.ranks = Ranks(model)
        self._model = unwrap(model)
        self.layers, self._reasons = _find(self._model, optimizer, include, exclude)
        self._signature = {layer.name: [layer.out, layer.fan_in, type(layer.kind).__name__] for layer in self.layers}
        self._dropped: dict[str, str] = {}
        self._warned: set[str] = set()
        self.device = self.layers[0].weight.device
        self.by_name = {layer.name: layer for layer in self.layers}
        self.shared = shared_layers(self._model, self.layers)
        self.uncovered = list(uncovered_parameters(self._model, self.layers))
        self.predictor = predictors.build(predictor) if isinstance(predictor, str) else predictor
        if self.predictor is not None:
            self.predictor.attach(self.layers)
        self.sources = known_sources.build(schedule.sources, self.predictor, sources)
        self.learns = self.predictor is not None or any(source.spec.remembers for source in self.sources.values())
        """Whether anything learns from true gradients."""
        self.sees_calls = self.predictor is not None or any(
            source.spec.uses_activations and not source.spec.needs_graph for source in self.sources.values()
        )
        """Whether anything depends on modules being called, which a weight used functionally is not."""
        self.call_order: dict[str, None] = {}
        """The modules with parameters in the order in which the first batch called them, for schedules that ask."""
        self.called: set[str] = set()
        """The layers that have run at least once."""
        self._refuse_what_cannot_work()
        if schedule.sources - {"backprop"}:
            self._warn_of_low_coverage()

    def _refuse_what_cannot_work(self) -> None:
        devices = {layer.weight.device for layer in self.layers}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise ValueError(f"the model's layers are on several devices ({names}): one AdaGP serves one device")
        if isinstance(self.optimizer, torch.optim.LBFGS) and (self.immediate or self.skip_forward):
            raise ValueError(
                "LBFGS evaluates the loss several times a step, with all gradients: use immediate=False and "
                "skip_forward=False"
            )
        if self.immediate and self.shared:
            raise ValueError(
                f"immediate=True: a parameter of layer {self.shared[0]!r} belongs to another module too, and what is "
                "used twice cannot change between its uses: use immediate=False"
            )

    def _warn_of_low_coverage(self) -> None:
        """Say at once where most of the model cannot take part: nothing else in training would show it."""
        coverage = self.coverage()
        if coverage.share >= _LOW_COVERAGE or not any(row.trained for row in coverage.rows):
            return
        gaps = ", ".join(f"{row.layer!r} ({row.kind}, {row.trained:,})" for row in coverage.largest_gaps())
        logger.warning(
            "only %.1f %% of the trained parameters are covered; all others rest in GP, the largest of them in %s: "
            "gp.coverage() gives the reasons, adagp.layers.register adds a layer type",
            100 * coverage.share,
            gaps,
        )

    def coverage(self) -> Coverage:
        """Which layers are covered at present, which are not, and why."""
        return present_coverage(self._model, self.parameters(), self.layers, self._reasons)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """All modules of the model that own parameters, with their names."""
        return owners(self._model)

    def group_norms(self) -> Iterator[nn.Module]:
        """All GroupNorm modules."""
        return (module for module in self._model.modules() if isinstance(module, nn.GroupNorm))

    def parameters(self) -> list[nn.Parameter]:
        """All parameters that the optimizer holds now."""
        return _held(self.optimizer)

    def name_of(self, parameter: nn.Parameter) -> str:
        """How messages call a parameter."""
        names = (name for name, one in self._model.named_parameters() if one is parameter)
        name = next(names, None)
        return "a parameter that is not the model's" if name is None else f"parameter {name!r}"

    def settle_nonfinite(self, macs: int) -> None:
        """Decide by the multiply-adds of a first forward whether looking for gradients that are not finite is cheap."""
        if self.stop_on_nonfinite is None and macs:
            entries = sum(parameter.numel() for parameter in self.parameters())
            self.stop_on_nonfinite = macs >= _CHEAP_CHECK * entries
            if not self.stop_on_nonfinite:
                logger.info(
                    "true gradients are not checked for NaN and infinity: that would take more than 1 %% of a batch; "
                    "stop_on_nonfinite=True checks them all the same"
                )

    def warn_once(self, key: str, message: str, *arguments: object) -> None:
        """Log a warning unless one with this key was logged before."""
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(message, *arguments)

    def next_plan(self) -> Plan:
        """The plan of the next batch; asking changes nothing."""
        if self.force_backprop:
            return Plan(Phase.BP, "backprop", note="fallback")
        plan = self.schedule(self.step_index)
        if self.schedule.wants_order and plan.overrides:  # what would be cut is only known after a first forward
            return Plan(Phase.BP, "backprop", note="first forward")
        return plan

    def resolve(self, plan: Plan) -> ResolvedPlan:
        """The task of every covered layer under a plan, checked; a layer that is frozen now has none."""
        active = [layer.name for layer in self.layers if layer.weight.requires_grad]
        resolved = resolve(
            plan,
            active,
            sources={name: source.spec for name, source in self.sources.items()},
            uncovered=self._reasons.keys() - self._signature.keys(),
            resting=self._signature.keys() - set(active),
            has_predictor=self.predictor is not None,
            step=self.step_index,
        )
        self._refuse_layers(resolved)
        return resolved

    def _refuse_layers(self, resolved: ResolvedPlan) -> None:
        """A source may not be able to serve a layer."""
        reasons: dict[str, str] = {}
        for name, task in resolved.tasks.items():
            reason = self.sources[task.source.name].refuse(self.by_name[name])
            if not reason and task.source.needs_grad_output and name in self.shared:
                reason = (
                    f"{task.source.name} sees one module's share of the gradient, and a parameter of layer {name!r} "
                    "belongs to another module too: give it another source"
                )
            if reason:
                reasons[name] = reason
        if reasons:
            pattern = "|".join(f"^{re.escape(name)}$" for name in reasons)
            raise ValueError(
                f"the plan of step {self.step_index} asks for what a source cannot do: {next(iter(reasons.values()))}; "
                f"to leave all such layers exact, give AdaGP (and schedules.layer_names) exclude={pattern!r}"
            )

    def drop(self, layer: Layer, reason: str) -> None:
        """Cover a layer no longer, because the first batches showed that its output is never seen."""
        logger.warning("layer %r is not covered: %s", layer.name, reason)
        self._dropped[layer.name] = reason
        self.layers.remove(layer)
        del self.by_name[layer.name]
        self.uncovered += [(layer.name, parameter) for parameter in layer.parameters()]
        self._reasons[layer.name] = reason

    def timed(self, work: Callable[[], Any]) -> Any:
        """Do the predictor's work on its clock, if there is one."""
        if self._timer is None:
            return work()
        start = self._timer()
        result = work()
        self.predictor_seconds += self._timer() - start
        return result

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, in plain types and tensors, so that it loads with `weights_only=True`."""
        state = {
            "format": _FORMAT,
            "setup": self._setup(),
            "layers": dict(self._signature),
            "dropped": dict(self._dropped),
            "called": sorted(self.called),
            "stop_on_nonfinite": self.stop_on_nonfinite,
            "step_index": self.step_index,
            "force_backprop": self.force_backprop,
            "counts": dict(self.counts),
            "quality": self.quality.state_dict(),
            "predictor": None if self.predictor is None else self.predictor.state_dict(),
            "sources": {name: source.state_dict() for name, source in self.sources.items()},
            "schedule": self.schedule.state_dict(),
            "predictor_seconds": self.predictor_seconds,
        }
        return copy.deepcopy(state)  # a snapshot: training goes on in place

    def _setup(self) -> dict[str, str]:
        """The parts of the set-up that a saved state must match."""
        return {
            "predictor": type(self.predictor).__name__,
            "schedule": type(self.schedule).__name__,
            "sources": ", ".join(f"{name}{source.options()}" for name, source in sorted(self.sources.items())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; ValueError says in what the saved model or set-up differs from this one."""
        if "format" not in state:
            raise ValueError(f"this is no AdaGP state: its keys are {sorted(map(str, state))[:8]}")
        if state["format"] != _FORMAT:
            raise ValueError(
                f"the AdaGP state has format {state['format']}, this version reads {_FORMAT}: load it with the version "
                "that wrote it"
            )
        mine = self._signature
        saved = {name: list(shape) for name, shape in state["layers"].items()}
        if mine != saved:
            names = sorted(name for name in {*mine, *saved} if mine.get(name) != saved.get(name))
            first = names[0]
            raise ValueError(
                f"the state is of another model: {len(names)} layers differ, the first is {first!r} "
                f"(saved rows {saved.get(first)}, here {mine.get(first)}); load it into the model it was saved from, "
                "in the same memory format"
            )
        for part, here in self._setup().items():
            if state["setup"].get(part) != here:
                raise ValueError(
                    f"the state was saved with another {part} ({state['setup'].get(part)}, here {here}): "
                    "build AdaGP with the same one"
                )
        if self.predictor is not None:
            self.predictor.load_state_dict(state["predictor"])
        for name, reason in state["dropped"].items():
            if name in self.by_name:
                self.drop(self.by_name[name], reason)
        self.called = set(state["called"])
        if self.stop_on_nonfinite is None:
            self.stop_on_nonfinite = state["stop_on_nonfinite"]
        self.step_index = state["step_index"]
        self.force_backprop = state["force_backprop"]
        self.counts = Counter(state["counts"])
        self.quality.load_state_dict(state["quality"])
        for name, source in self.sources.items():
            source.load_state_dict(state["sources"][name])
        self.schedule.load_state_dict(state["schedule"])
        self.predictor_seconds = state["predictor_seconds"]


def _held(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters that an optimizer holds."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _find(
    model: nn.Module, optimizer: Optimizer, include: str | None, exclude: str | None
) -> tuple[list[Layer], dict[str, str]]:
    optimized = _held(optimizer)
    trained = {id(parameter) for parameter in optimized}
    if not any(id(parameter) in trained for parameter in model.parameters()):
        raise ValueError(
            "the optimizer holds none of the model's parameters: build it from model.parameters(), "
            "after moving the model to its device"
        )
    layers, reasons = find_layers(model, optimized, include, exclude)
    if not layers:
        coverage = present_coverage(model, optimized, layers, reasons)
        raise ValueError(
            f"the model has no layer that adagp can cover:\n{coverage}\nregister its layer types with layers.register"
        )
    return layers, reasons
