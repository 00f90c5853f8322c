"""Prefix schedules: in GP batches the early layers are predicted and the late ones stay exact.

The late layers keep their true gradients, and the early ones, usually the larger half of the work, need neither a
graph nor a backward.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adagp.schedules.ladder import Ladder
from adagp.schedules.plan import Phase, Plan, Schedule

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger("adagp")


class Prefix(Schedule):
    """A ladder whose GP batches are exact after a prefix of the model; see `prefix`."""

    def __init__(
        self,
        ladder: Ladder,
        until: str,
        modules: Sequence[str],
        layers: Collection[str],
        sharing: Mapping[str, Sequence[str]],
    ) -> None:
        """Cut by the order of registration until the first batch shows the order of the forward.

        Args:
            ladder: Says which batches are cut; its source serves the layers of the prefix.
            until: The last layer or module of the prefix.
            modules: All modules with parameters, in the order of registration.
            layers: Those of them that are covered.
            sharing: For each module, the others that own one of its parameters.
        """
        self._ladder, self._until, self._layers, self._sharing = ladder, until, layers, sharing
        self._order: list[str] | None = None
        self.problem = self._problem(modules)
        """Why nothing can be cut in the order of registration; empty where it can. The forward may run in another."""
        self._overrides = {} if self.problem else self._cut(modules)
        self.sources = ladder.sources | {ladder.source, "skip"}

    def __call__(self, step: int) -> Plan:
        """The ladder's plan; a GP batch becomes a BP batch that begins after the prefix."""
        plan = self._ladder(step)
        return Plan(Phase.BP, "backprop", self._overrides, plan.note) if plan.phase is Phase.GP else plan

    @property
    def wants_order(self) -> bool:
        """Until the first batch is over."""
        return self._order is None

    def observe_order(self, names: Sequence[str]) -> None:
        """Cut by the order of the forward from now on.

        Raises:
            ValueError: When the prefix has no layer, or there is none after it.
        """
        problem = self._problem(names)
        if problem:
            raise ValueError(problem)
        by_registration, self._order, self._overrides = self._overrides, list(names), self._cut(names)
        if self._overrides != by_registration:
            modules = list(self._overrides)
            logger.warning(
                "prefix: the model's modules are not registered in the order in which they run; in that order the "
                "prefix goes from %r to %r, %d modules with parameters",
                modules[0],
                modules[-1],
                len(modules),
            )
        for name in self._overrides:
            for other in self._sharing[name]:
                if other in names and other not in self._overrides:
                    logger.warning(
                        "prefix: %r shares its weight with %r, which comes after the prefix and needs the true "
                        "gradient, so autograd still builds a graph from %r on and the prefix saves little: untie them",
                        name,
                        other,
                        name,
                    )

    def _before(self, names: Sequence[str]) -> list[str]:
        """The modules up to the end of the prefix."""
        inside = [
            place for place, name in enumerate(names) if name == self._until or name.startswith(f"{self._until}.")
        ]
        return list(names[: inside[-1] + 1]) if inside else []

    def _cut(self, names: Sequence[str]) -> dict[str, str]:
        """What each module of the prefix does in the batches that the ladder predicts."""
        return {name: self._ladder.source if name in self._layers else "skip" for name in self._before(names)}

    def _problem(self, names: Sequence[str]) -> str:
        """Why nothing can be cut in this order; empty where it can."""
        before = set(self._before(names))
        known = f"the layers are: {', '.join(name for name in names if name in self._layers)}"
        if not before:
            return f"until={self._until!r} was not called in the first batch; {known}"
        if not before & set(self._layers):
            return f"until={self._until!r} has no layer up to its end; {known}"
        if not set(names) & set(self._layers) - before:
            return f"until={self._until!r} leaves no layer after the prefix: use the ladder itself"
        return ""

    def state_dict(self) -> dict[str, Any]:
        """The order in which the modules run, None before the first batch."""
        return {"order": self._order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._order = state["order"]
        if self._order is not None:
            self._overrides = self._cut(self._order)


def prefix(
    model: "nn.Module", until: str, ladder: Ladder, include: str | None = None, exclude: str | None = None
) -> Prefix:
    """Where `ladder` has a GP batch, its source serves the layers up to `until`, and all after it is exact.

    Modules without a source in the prefix (batch norms) rest there, so that autograd builds no graph before the end
    of the prefix. Modules count in the order in which the first batch calls them; that batch is exact. Where no batch
    is trained, as in `adagp schedule show`, they count in the order of registration.

    Args:
        model: The model that will be trained.
        until: The last layer of the prefix, or a module: the prefix then ends with it.
        ladder: From `schedules.ladder` or `schedules.fixed`; its `source` is what the prefix gets.
        include: As for `AdaGP`, which must be given the same.
        exclude: As for `AdaGP`, which must be given the same.
    """
    from adagp.layers.coverage import (  # needs torch, which the accelerator does without
        layer_names,
        owners,
        sharing_modules,
    )

    layers = layer_names(model, include, exclude)
    names = [name for name, _ in owners(model)]
    if not any(name == until or name.startswith(f"{until}.") for name in names):
        raise ValueError(f"until={until!r} is no module with parameters; the layers are: {', '.join(layers)}")
    return Prefix(ladder, until, names, layers, sharing_modules(model))
