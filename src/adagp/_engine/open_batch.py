"""One batch while it is open: what was decided when it began, and what its passes have shown so far."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from adagp._engine.capture.hooks import Current
from adagp._engine.coverage import parameters_without_source
from adagp._engine.exchange import Exchange
from adagp._engine.forward import ForwardPass
from adagp._engine.layer_batch import LayerBatch
from adagp._engine.local import LocalLosses
from adagp._engine.progress import Progress
from adagp._engine.scaling import LossScaling
from adagp._engine.setup import Setup
from adagp.schedules import Phase, Plan, ResolvedPlan


@dataclass(eq=False)
class OpenBatch:
    """One batch, as everything that completes it sees it.

    Attributes:
        setup: What `AdaGP` was attached to.
        progress: How far training has come.
        current: Where hooks find the batch.
        step_index: Its step.
        plan: Its plan.
        resolved: The task of every layer under the plan.
        scaling: Who runs the backward, and in what scale.
        local: The local losses; None where the schedule never asks for them.
        forward: What happens while the forward runs.
        timed: Does the predictor's work on its clock.
        layers: The layers that take part, by name.
        loss_is_finite: Whether every loss so far is; on all ranks when the batch is over.
        ran_own_backward: Whether a backward was ours. Another may leave gradients for later.
        exchange: What ranks tell each other, where it was sent before the backward.
        failed: Whether a prediction or the loss was not finite in GP.
    """

    setup: Setup
    progress: Progress
    current: Current
    step_index: int
    plan: Plan
    resolved: ResolvedPlan
    scaling: LossScaling
    local: LocalLosses | None
    forward: ForwardPass
    timed: Callable[[Callable[[], Any]], Any]
    layers: dict[str, LayerBatch]
    loss_is_finite: bool = True
    ran_own_backward: bool = False
    exchange: Exchange | None = None
    failed: bool = False

    @property
    def is_gp(self) -> bool:
        """Whether nothing has a backward."""
        return self.plan.phase is Phase.GP

    @property
    def needs_forward(self) -> bool:
        """Whether the forward pass must run: always, unless `skip_forward` and no source uses activations."""
        return not self.setup.options.skip_forward or self.resolved.needs_forward

    @property
    def is_local(self) -> bool:
        """Whether a layer learns from a local loss."""
        return self.local is not None and self.resolved.is_local

    def without_source(self) -> list[tuple[str, nn.Parameter]]:
        """The trainable parameters that no source serves, each with the name of its module."""
        return list(parameters_without_source(self.setup, self.progress))

    def discard(self) -> None:
        """Leave nothing for the optimizer to apply."""
        for parameter in self.setup.parameters():
            parameter.grad = None
        if self.local is not None:
            self.local.discard()
