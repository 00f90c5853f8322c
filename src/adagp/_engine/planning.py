"""The plan of the next batch, and the task of every layer under it."""

import re

from adagp._engine.coverage import active_layers
from adagp._engine.progress import Progress
from adagp._engine.setup import Setup
from adagp.layers import Layer
from adagp.schedules import Phase, Plan, ResolvedPlan, resolve

_KEPT = 8
"""How many resolved plans are kept: schedules go round a few."""


class Planner:
    """Knows the next plan, and resolves plans; one that returns for the same layers is not resolved again."""

    def __init__(self, setup: Setup, progress: Progress) -> None:
        """Nothing is resolved yet."""
        self._setup, self._progress = setup, progress
        self._known: list[tuple[Plan, list[Layer], ResolvedPlan]] = []

    def next_plan(self) -> Plan:
        """The plan of the next batch; asking changes nothing."""
        if self._progress.falls_back:
            return Plan(Phase.BP, "backprop", note="fallback")
        schedule = self._setup.schedule
        plan = schedule(self._progress.step_index)
        if schedule.wants_order and plan.overrides:  # what would be cut is only known after a first forward
            return Plan(Phase.BP, "backprop", note="first forward")
        return plan

    def resolve(self, plan: Plan) -> ResolvedPlan:
        """The task of every covered layer under a plan, checked; a layer that is frozen now has none."""
        active = active_layers(self._setup, self._progress)
        for known, layers, resolved in self._known:
            if (known is plan or known == plan) and layers == active:
                return resolved
        resolved = _resolve(self._setup, plan, [layer.name for layer in active], self._progress.step_index)
        self._known = [(plan, active, resolved), *self._known[: _KEPT - 1]]
        return resolved


def _resolve(setup: Setup, plan: Plan, active: list[str], step: int) -> ResolvedPlan:
    resolved = resolve(
        plan,
        active,
        sources={name: source.spec for name, source in setup.sources.items()},
        uncovered=setup.reasons.keys() - setup.by_name.keys(),
        resting=setup.by_name.keys() - set(active),
        has_predictor=setup.predictor is not None,
        step=step,
    )
    _refuse_layers(setup, resolved, step)
    return resolved


def _refuse_layers(setup: Setup, resolved: ResolvedPlan, step: int) -> None:
    """A source may not be able to serve a layer."""
    reasons: dict[str, str] = {}
    for name, task in resolved.tasks.items():
        reason = setup.sources[task.source.name].refuse(setup.by_name[name])
        if not reason and task.source.needs_grad_output and name in setup.shared:
            reason = (
                f"{task.source.name} sees one module's share of the gradient, and a parameter of layer {name!r} "
                "belongs to another module too: give it another source"
            )
        if not reason and task.source.needs_grad_output and setup.by_name[name].own is not None:
            reason = (
                f"{task.source.name} computes the gradient of a whole weight from a rank's own samples, and layer "
                f"{name!r} is sharded by fully_shard, so that no rank has its whole gradient: use backprop there, or "
                "DistributedDataParallel"
            )
        if reason:
            reasons[name] = reason
    if reasons:
        pattern = "|".join(f"^{re.escape(name)}$" for name in reasons)
        raise ValueError(
            f"the plan of step {step} asks for what a source cannot do: {next(iter(reasons.values()))}; "
            f"to leave all such layers exact, give AdaGP (and schedules.layer_names) exclude={pattern!r}"
        )
