"""Prefix schedules: in GP batches the early layers are predicted and the late ones stay exact.

The late layers keep their true gradients, and the early ones, usually the larger half of the work, need neither a
graph nor a backward.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from adagp.schedules.ladder import Ladder
from adagp.schedules.plan import Phase, Plan, Schedule

if TYPE_CHECKING:
    from torch import nn


class Prefix(Schedule):
    """A ladder whose GP batches are exact after a prefix of the model; see `prefix`."""

    def __init__(self, ladder: Ladder, overrides: Mapping[str, str]) -> None:
        """`overrides` say what the modules of the prefix do in the batches that the ladder predicts."""
        self._ladder, self._overrides = ladder, overrides
        self.sources = ladder.sources | frozenset(overrides.values())

    def __call__(self, step: int) -> Plan:
        """The ladder's plan; a GP batch becomes a BP batch that begins after the prefix."""
        plan = self._ladder(step)
        return Plan(Phase.BP, "backprop", self._overrides, plan.note) if plan.phase is Phase.GP else plan


def prefix(
    model: "nn.Module", until: str, ladder: Ladder, include: str | None = None, exclude: str | None = None
) -> Schedule:
    """Where `ladder` has a GP batch, its source serves the layers up to `until`, and all after it is exact.

    Modules without a source in the prefix (batch norms) rest there, so that autograd builds no graph before the end
    of the prefix. The order is that in which modules are registered: it must be the order of the forward pass.

    Args:
        model: The model that will be trained.
        until: The last layer of the prefix, or a module: the prefix then ends with it.
        ladder: From `schedules.ladder` or `schedules.fixed`; its `source` is what the prefix gets.
        include: As for `AdaGP`, which must be given the same.
        exclude: As for `AdaGP`, which must be given the same.
    """
    from adagp.coverage import layer_names, owner_names  # needs torch, which the accelerator model does without

    layers = layer_names(model, include, exclude)
    names = owner_names(model)
    ends = [place for place, name in enumerate(names) if name == until or name.startswith(f"{until}.")]
    before = names[: ends[-1] + 1] if ends else []
    if not set(before) & set(layers):
        cause = "has no layer up to its end" if ends else "is no module with parameters"
        raise ValueError(f"until={until!r} {cause}; the layers are: {', '.join(layers)}")
    if set(layers) <= set(before):
        raise ValueError(f"until={until!r} leaves no layer after the prefix: use the ladder itself")
    return Prefix(ladder, {name: ladder.source if name in layers else "skip" for name in before})
