"""What `AdaGP` was attached to: found and checked once, and never changed."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.optim import Optimizer

from adagp import predictors, schedules
from adagp import sources as known_sources
from adagp._engine.capture.recorder import Poolers
from adagp.distributed.ranks import Ranks, inside_fabric, refuse_old_sharding, unwrap
from adagp.layers import Layer
from adagp.layers.coverage import find_layers, present_coverage, shared_layers, uncovered_parameters
from adagp.predictors import FeatureSpec, Predictor, RowSharding
from adagp.schedules import Plan, Schedule
from adagp.sources import Local, Remembered, Source

logger = logging.getLogger("adagp")

_LOW_COVERAGE = 0.5
"""Share of the trained parameters below which attaching warns."""


@dataclass(frozen=True)
class Options:
    """The options of an `AdaGP`; see its arguments."""

    immediate: bool = False
    skip_forward: bool = False
    stop_on_nonfinite: bool | None = None
    timer: Callable[[], float] | None = None


@dataclass(frozen=True)
class Setup:
    """The model, its layers, and what supplies their gradients.

    Attributes:
        model: The user's own module, inside DistributedDataParallel too.
        given_model: What the user calls: `model`, or DistributedDataParallel around it.
        optimizers: Step the model's parameters, each its own.
        schedule: Says for each step which source supplies each layer.
        predictor: Predicts gradients; None where nothing does.
        sources: Every source that the schedule may ask for, by name.
        layers: The layers that could be covered.
        reasons: For every module with parameters the reason why it is not covered; empty for `layers`.
        uncovered: The parameters that belong to no layer, each with the name of its module.
        shared: The layers that have a parameter which another module owns too.
        ranks: The processes that train the same model.
        poolers: How the predictor wants tensors to be pooled.
        options: How the user wants it all to run.
    """

    model: nn.Module
    given_model: nn.Module
    optimizers: tuple[Optimizer, ...]
    schedule: Schedule
    predictor: Predictor | None
    sources: Mapping[str, Source]
    layers: tuple[Layer, ...]
    reasons: Mapping[str, str]
    uncovered: tuple[tuple[str, nn.Parameter], ...]
    shared: frozenset[str]
    ranks: Ranks
    poolers: Poolers
    options: Options

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """The layers by name."""
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def covered_ids(self) -> frozenset[int]:
        """The ids of the parameters of all layers."""
        return frozenset(id(parameter) for layer in self.layers for parameter in layer.parameters())

    @cached_property
    def device(self) -> torch.device:
        """Where all layers are."""
        return self.layers[0].weight.device

    @cached_property
    def needs(self) -> FeatureSpec:
        """What the predictor asks for."""
        return FeatureSpec() if self.predictor is None else self.predictor.needs

    @cached_property
    def learns(self) -> bool:
        """Whether anything learns from true gradients."""
        return self.predictor is not None or any(source.spec.remembers for source in self.sources.values())

    @cached_property
    def depends_on_calls(self) -> bool:
        """Whether anything depends on modules being called, which a weight used functionally is not."""
        return self.predictor is not None or any(
            source.spec.uses_activations and not source.spec.needs_graph for source in self.sources.values()
        )

    @cached_property
    def weight_names(self) -> dict[str, str]:
        """The names of the layers' weights among the model's parameters, by layer."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return {layer.name: names[layer.weight] for layer in self.layers}

    @cached_property
    def local(self) -> Local | None:
        """The source of local losses, if the schedule may ask for it."""
        found = self.sources.get("local")
        return found if isinstance(found, Local) else None

    def parameters(self) -> list[nn.Parameter]:
        """All parameters that the optimizers hold now."""
        return _held(*self.optimizers)

    def has_gradients(self) -> bool:
        """Whether any of them has a gradient."""
        return any(part.grad is not None for part in self.parameters())

    def optimizers_of(self, layer: Layer) -> list[Optimizer]:
        """The optimizers that hold a parameter of a layer."""
        if len(self.optimizers) == 1:
            return list(self.optimizers)
        own = {id(parameter) for parameter in layer.parameters()}
        return [one for one in self.optimizers if any(id(parameter) in own for parameter in _held(one))]

    @cached_property
    def uses_lbfgs(self) -> bool:
        """Whether the optimizer evaluates the loss several times a step."""
        return any(isinstance(one, torch.optim.LBFGS) for one in self.optimizers)

    def group_norms(self) -> Iterator[nn.Module]:
        """All GroupNorm modules."""
        return (module for module in self.model.modules() if isinstance(module, nn.GroupNorm))

    def name_of(self, parameter: nn.Parameter) -> str:
        """What messages call a parameter."""
        names = (name for name, one in self.model.named_parameters() if one is parameter)
        name = next(names, None)
        return "a parameter that is not the model's" if name is None else f"parameter {name!r}"


def set_up(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    schedule: Schedule | Callable[[int], Plan],
    predictor: str | Predictor | None,
    sources: Mapping[str, Source],
    include: str | None,
    exclude: str | None,
    options: Options,
) -> Setup:
    """Find the layers, build what supplies their gradients, and check that everything fits together.

    The arguments are those of `AdaGP`.
    """
    model = inside_fabric(model)
    optimizers = tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)
    _refuse_other_kinds(model, optimizers, schedule, predictor)
    refuse_old_sharding(model)
    own = unwrap(model)
    layers, reasons = _find(own, optimizers, include, exclude)
    known = schedule if isinstance(schedule, Schedule) else schedules.from_function(schedule)
    built = predictors.build(predictor) if isinstance(predictor, str) else predictor
    ranks = Ranks(model)
    if built is not None:
        _refuse_predictor(built)
        if ranks.shards_rows and isinstance(built, RowSharding):
            built.share_rows(ranks.sum_rows)
        built.attach(layers)
    setup = Setup(
        model=own,
        given_model=model,
        optimizers=optimizers,
        schedule=known,
        predictor=built,
        sources=known_sources.build(known.sources, built, sources),
        layers=tuple(layers),
        reasons=reasons,
        uncovered=tuple(uncovered_parameters(own, layers)),
        shared=frozenset(shared_layers(own, layers)),
        ranks=ranks,
        poolers=Poolers.of(FeatureSpec() if built is None else built.needs),
        options=options,
    )
    for source in setup.sources.values():
        source.attach(own, setup.layers)
    _refuse_what_cannot_work(setup)
    if known.sources - {"backprop"}:
        _warn_of_low_coverage(setup)
    if built is not None and "predicted" not in known.sources:
        logger.info("no plan asks for predictions: the predictor only watches; predictor=None saves its cost")
    return setup


def _held(*optimizers: Optimizer) -> list[nn.Parameter]:
    return [part for optimizer in optimizers for group in optimizer.param_groups for part in group["params"]]


def _find(
    model: nn.Module, optimizers: Sequence[Optimizer], include: str | None, exclude: str | None
) -> tuple[list[Layer], dict[str, str]]:
    optimized = _held(*optimizers)
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


def _refuse_what_cannot_work(setup: Setup) -> None:
    options = setup.options
    devices = {layer.weight.device for layer in setup.layers}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the model's layers are on several devices ({names}): one AdaGP serves one device")
    _refuse_optimizers(setup)
    if setup.ranks.shards_rows:
        _refuse_for_sharded_rows(setup)
    if setup.uses_lbfgs and (options.immediate or options.skip_forward):
        raise ValueError(
            "LBFGS evaluates the loss several times a step, with all gradients: use immediate=False and "
            "skip_forward=False"
        )
    if setup.uses_lbfgs and setup.schedule.wants_probes:
        raise ValueError("LBFGS evaluates the loss several times a step: use a schedule that does not probe batches")
    if options.immediate and setup.shared:
        first = next(layer.name for layer in setup.layers if layer.name in setup.shared)
        raise ValueError(
            f"immediate=True: a parameter of layer {first!r} belongs to another module too, and what is "
            "used twice cannot change between its uses: use immediate=False"
        )
    if options.immediate and setup.needs.needs_loss_grad:
        raise ValueError(
            "immediate=True: the predictor asks for the gradient of the loss at the model's output, which is known "
            "only after the forward: use immediate=False"
        )


def _refuse_for_sharded_rows(setup: Setup) -> None:
    """Where each rank holds some rows of a layer, what needs all of them cannot work; all of it is named at once."""
    reasons = []
    if setup.options.immediate:
        reasons.append("immediate=True updates a layer while its whole weight is in use: use immediate=False")
    if setup.uses_lbfgs:
        reasons.append("LBFGS needs inner products of whole gradients: use another optimizer")
    if setup.schedule.wants_probes:
        reasons.append(
            f"{type(setup.schedule).__name__} compares whole gradients of several scales: use schedules.progressive"
        )
    if setup.predictor is not None and not isinstance(setup.predictor, RowSharding):
        reasons.append(
            f"predictor {type(setup.predictor).__name__} has no share_rows, so it cannot learn from some rows of a "
            "layer: use 'trusted', 'paper' or None, or see adagp.predictors.RowSharding"
        )
    if setup.local is not None:
        reasons.append(
            "source 'local' runs a backward for each part, and fully_shard gathers and reduces for one of the whole "
            "model: use DistributedDataParallel"
        )
    reasons += [
        f"source {name!r} remembers gradients in a way of its own, which could not be saved: derive it from "
        "sources.Remembered"
        for name, source in setup.sources.items()
        if source.spec.remembers and not isinstance(source, Remembered)
    ]
    if reasons:
        raise ValueError("the model is sharded by fully_shard, and no rank holds a whole layer: " + "; ".join(reasons))


def _refuse_optimizers(setup: Setup) -> None:
    """Each parameter has one optimizer, and one that evaluates the loss again stands alone."""
    held: set[int] = set()
    for optimizer in setup.optimizers:
        own = {id(parameter): parameter for parameter in _held(optimizer)}
        twice = next((parameter for key, parameter in own.items() if key in held), None)
        if twice is not None:
            raise ValueError(f"{setup.name_of(twice)} is held by two optimizers: give each parameter to one of them")
        held |= own.keys()
    if setup.uses_lbfgs and len(setup.optimizers) > 1:
        raise ValueError("LBFGS evaluates the loss several times a step: use it as the only optimizer")


def _warn_of_low_coverage(setup: Setup) -> None:
    """Say at once where most of the model cannot take part: nothing else in training would show it."""
    coverage = present_coverage(setup.model, setup.parameters(), setup.layers, setup.reasons)
    if coverage.share >= _LOW_COVERAGE or not any(row.trained for row in coverage.rows):
        return
    gaps = ", ".join(f"{row.layer!r} ({row.kind}, {row.trained:,})" for row in coverage.largest_gaps())
    logger.warning(
        "only %.1f %% of the trained parameters are covered; all others rest in GP, the largest of them in %s: "
        "gp.coverage() gives the reasons, adagp.layers.register adds a layer type",
        100 * coverage.share,
        gaps,
    )


def _refuse_other_kinds(model: object, optimizers: Sequence[object], schedule: object, predictor: object) -> None:
    """Name an argument that is not what it should be before something deep inside does."""
    if hasattr(model, "_orig_mod"):
        raise ValueError("model is already compiled: attach AdaGP to the plain module first, then torch.compile it")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r}: give a torch.nn.Module, and the optimizer after it")
    if not optimizers:
        raise ValueError("optimizer = []: give at least one optimizer of the model's parameters")
    for optimizer in optimizers:
        _refuse_optimizer(optimizer)
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


def _refuse_optimizer(optimizer: object) -> None:
    if not hasattr(optimizer, "param_groups"):  # some that wrap another are no torch.optim.Optimizer themselves
        raise TypeError(f"optimizer = {optimizer!r}: give the torch.optim optimizer of the model's parameters")
    kind = next((kind for kind in type(optimizer).__mro__ if kind.__module__.split(".")[0] == "opacus"), None)
    if kind is not None:
        raise ValueError(
            f"optimizer = {kind.__module__}.{kind.__name__}: it adds noise to clipped per-sample gradients, and a "
            "prediction carries no privacy guarantee: train without AdaGP, or without differential privacy"
        )


def _refuse_predictor(predictor: Predictor) -> None:
    """Name all that a predictor lacks at once."""
    missing = [name for name in _PREDICTOR_PARTS if not hasattr(predictor, name)]
    if missing:
        raise TypeError(
            f"predictor = {predictor!r}: it has no {', '.join(missing)}; adagp.predictors.Predictor says what each is "
            "for"
        )
    if not isinstance(predictor.needs, FeatureSpec):
        raise TypeError(f"predictor = {predictor!r}: its needs is {predictor.needs!r}: give a FeatureSpec")


_PREDICTOR_PARTS = (
    "needs",
    "attach",
    "layers_to_train_on",
    "predict",
    "learn",
    "trust",
    "state_dict",
    "load_state_dict",
)
