"""A plan resolved for a model: the task of every covered layer, and what all other modules do.

Engine, cost model and accelerator model read the result, so that they cannot disagree about what a plan means.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from adagp.schedules.plan import Phase, Plan
from adagp.schedules.sources import SourceSpec, specs


@dataclass(frozen=True)
class LayerTask:
    """What one covered layer does in one batch.

    Attributes:
        layer: Its name.
        source: Where its gradient comes from.
        trains_predictor: The predictor learns from its true gradient. It does not in coarse batches.
    """

    layer: str
    source: SourceSpec
    trains_predictor: bool


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan with the task of every covered layer, by name."""

    plan: Plan
    tasks: Mapping[str, LayerTask]

    @cached_property
    def needs_backward(self) -> bool:
        """Whether a covered layer waits for a backward pass."""
        return any(task.source.needs_backward for task in self.tasks.values())

    @cached_property
    def is_local(self) -> bool:
        """Whether a covered layer learns from a loss of its own part of the network."""
        return any(task.source.is_local for task in self.tasks.values())

    @cached_property
    def trains_predictor(self) -> bool:
        """Whether the predictor learns from a layer."""
        return any(task.trains_predictor for task in self.tasks.values())

    @cached_property
    def trains_everything(self) -> bool:
        """Whether every parameter gets a gradient by autograd, those that no source serves included."""
        is_exact = self.plan.phase is not Phase.GP and not self.plan.overrides
        return is_exact and all(task.source.needs_graph for task in self.tasks.values())

    @cached_property
    def needs_forward(self) -> bool:
        """Whether the forward pass must run for the sake of a covered layer."""
        return self.plan.phase is not Phase.GP or any(task.source.uses_activations for task in self.tasks.values())

    def trains(self, module: str) -> bool:
        """Whether parameters that no source serves get their true gradient: they follow backprop, or rest."""
        source = self.plan.source_of_uncovered(module)
        return source == "backprop" or (source in specs() and specs()[source].needs_backward)


def resolve(
    plan: Plan,
    layers: Sequence[str],
    *,
    sources: Mapping[str, SourceSpec] | None = None,
    uncovered: Collection[str] | None = None,
    resting: Collection[str] = (),
    has_predictor: bool = True,
    step: int | None = None,
) -> ResolvedPlan:
    """Turn a plan into the task of every layer, and refuse one that is impossible.

    Args:
        plan: The plan of one batch.
        layers: The covered layers.
        sources: The available sources; None: all that are known.
        uncovered: The other modules with parameters, which a plan may name too; None: it may name any.
        resting: Layers that take no part now, because they are frozen or their output is never seen.
        has_predictor: Whether there is a predictor, to predict and to learn.
        step: The plan's step, for messages.

    Raises:
        ValueError: When the plan asks for what is not there, or for a backward in GP.
    """
    which = "the plan" if step is None else f"the plan of step {step}"
    at_hand = specs() if sources is None else sources
    _refuse_sources(plan, at_hand, has_predictor, which)
    _refuse_rates(plan, {*layers, *resting}, which)
    if uncovered is not None:
        _refuse_modules(plan, {*layers, *resting}, uncovered, which)
    tasks = {}
    for layer in layers:
        source = at_hand[plan.source(layer)]
        if plan.phase is Phase.GP and source.needs_backward:
            raise ValueError(f"a GP plan has no backward, but layer {layer!r} asks for it: use Phase.BP")
        tasks[layer] = LayerTask(layer, source, has_predictor and source.is_true and not plan.is_coarse)
    return ResolvedPlan(plan, tasks)


def _refuse_sources(plan: Plan, at_hand: Mapping[str, SourceSpec], has_predictor: bool, which: str) -> None:
    missing = plan.used_sources() - at_hand.keys()
    needs_predictor = [name for name in plan.used_sources() if name in specs() and specs()[name].needs_features]
    if needs_predictor and not has_predictor:
        raise ValueError(f"the plan asks for {needs_predictor[0]!r} but predictor=None: give AdaGP a predictor")
    if missing:
        raise ValueError(
            f"{which} asks for {sorted(missing)}, which the schedule did not announce; announced: {sorted(at_hand)} "
            "(see schedules.from_function)"
        )


def _refuse_rates(plan: Plan, layers: Collection[str], which: str) -> None:
    unused = sorted(layer for layer in plan.rates if layer not in layers or plan.source(layer) != "sampled")
    if unused:
        raise ValueError(f"{which} has rates of {unused}, whose source is not sampled: name layers that it samples")


def _refuse_modules(plan: Plan, layers: Collection[str], uncovered: Collection[str], which: str) -> None:
    unknown = plan.overrides.keys() - set(layers) - set(uncovered)
    if unknown:
        raise ValueError(
            f"{which} names {sorted(unknown)}, which the model has not; its layers are: {', '.join(sorted(layers))}"
        )
    allowed = ("skip",) if plan.phase is Phase.GP else ("backprop", "skip")
    for name, source in plan.overrides.items():
        if name in uncovered and source not in allowed:
            raise ValueError(
                f"{which} ({plan.phase.value}) gives {name!r} {source!r}, but it is not covered: it can have "
                f"{' or '.join(allowed)}"
            )
