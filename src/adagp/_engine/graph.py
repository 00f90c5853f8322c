"""Cuts the autograd graph where the plan needs none of it."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from adagp._engine.layer_batch import LayerBatch
from adagp._engine.setup import Setup
from adagp.schedules import Phase, ResolvedPlan


class GraphCut:
    """Leaves parameters out of the graph while a batch is open. Autograd prunes the rest by itself."""

    def __init__(self, setup: Setup, step_index: int) -> None:
        """Nothing is cut yet."""
        self._setup, self._step_index = setup, step_index
        self._cut: list[nn.Parameter] = []
        self._grad_mode: bool | None = None  # what it was before a batch that changed it

    def __bool__(self) -> bool:
        """Whether some parameters do not require grad because of the plan."""
        return bool(self._cut)

    def cut(
        self,
        resolved: ResolvedPlan,
        layers: Iterable[LayerBatch],
        without_source: Callable[[], Iterable[tuple[str, nn.Parameter]]],
    ) -> None:
        """Put a plan in force: no graph at all in GP, else none for parameters whose source needs none.

        Args:
            resolved: The plan.
            layers: The layers that take part.
            without_source: Finds the parameters that no source serves, each with the name of its module.
        """
        if resolved.plan.phase is Phase.GP:
            self._grad_mode = torch.is_grad_enabled()
            if not self._setup.needs.needs_loss_grad:  # there the model's own hooks switch it off, and on for the loss
                torch.set_grad_enabled(False)
            return
        if resolved.trains_everything:
            return
        for entry in layers:
            if not entry.spec.needs_graph:
                for parameter in entry.layer.parameters():
                    self._leave_out(parameter)
        for module, parameter in without_source():
            if not resolved.trains(module):
                self._leave_out(parameter)

    def _leave_out(self, parameter: nn.Parameter) -> None:
        """A frozen parameter is out of the graph anyway."""
        if not parameter.requires_grad:
            return
        if not self._setup.ranks.mixes_sources:
            raise ValueError(
                f"the plan of step {self._step_index} leaves parameters without backprop, and DistributedDataParallel "
                "would wait for their gradients: build it with find_unused_parameters=True (and static_graph=False)"
            )
        parameter.requires_grad_(False)
        self._cut.append(parameter)

    def restore(self) -> nn.Parameter | None:
        """Undo the cut. Returns a parameter that somebody switched on inside the batch, if any."""
        if self._grad_mode is not None:
            torch.set_grad_enabled(self._grad_mode)
            self._grad_mode = None
        if not self._cut:
            return None
        changed = next((parameter for parameter in self._cut if parameter.requires_grad), None)
        for parameter in self._cut:
            parameter.requires_grad_(True)
        self._cut.clear()
        return changed
