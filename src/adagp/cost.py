"""What a plan costs: multiply-adds of a model's layers in one batch, found without computing anything.

The model is copied to the meta device, which knows shapes but no numbers, and run once under each plan with the graph
cut as the engine cuts it. Autograd itself then says which layers must pass the error on. Counted are the layers'
products; norms, activations, the optimizer and the predictor's own learning are not.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp.layers import kind_of
from adagp.layers.coverage import find_layers, uncovered_parameters
from adagp.schedules import GradientWork, Phase, Plan, ResolvedPlan, always_backprop, resolve

PREDICTOR_FEATURES = 17
"""Inputs of the default predictor's last layer: a grid of 4 x 4 and a constant."""


@dataclass(frozen=True)
class LayerCost:
    """Multiply-adds of one layer in one batch.

    Attributes:
        forward: For its output.
        input_gradient: For the gradient at its input; 0 where nothing before it needs one.
        weight_gradient: For its weight gradient, from whatever source.
    """

    forward: int = 0
    input_gradient: int = 0
    weight_gradient: int = 0

    @property
    def total(self) -> int:
        """All three."""
        return self.forward + self.input_gradient + self.weight_gradient


class CostModel:
    """The cost of plans for one model and one shape of its input."""

    def __init__(
        self,
        model: nn.Module,
        input_shape: Sequence[int],
        *,
        k: int = 1,
        features: int = PREDICTOR_FEATURES,
    ) -> None:
        """Copy the model's shapes; the model itself stays as it is.

        Args:
            model: Any model whose forward takes one tensor.
            input_shape: The shape of that tensor, batch first.
            k: Entries that `topk` keeps per sample and channel.
            features: Inputs of the predictor's last layer, which writes the rows.
        """
        self._model = _on_meta(model).train()
        self._input_shape = tuple(input_shape)
        self._k, self._features = k, features
        found, _ = find_layers(self._model, self._model.parameters())
        self._layers = {layer.name: layer for layer in found if layer.weight.requires_grad}
        others = uncovered_parameters(self._model, self._layers.values())
        self._uncovered = [(module, parameter) for module, parameter in others if parameter.requires_grad]
        self._known: dict[tuple[str, ...], dict[str, LayerCost]] = {}
        self._plain = self.plan_cost(always_backprop()(0))

    def plan_cost(self, plan: Plan) -> int:
        """Multiply-adds of one batch under a plan."""
        return sum(cost.total for cost in self.layers(plan).values())

    def relative(self, schedule: Callable[[int], Plan], steps: Iterable[int]) -> float:
        """Multiply-adds of these batches under a schedule, over those of as many plain BP batches."""
        costs = [self.plan_cost(schedule(step)) for step in steps]
        if not costs:
            raise ValueError("steps: there are none to count; give for example range(8)")
        return sum(costs) / (len(costs) * self._plain)

    def layers(self, plan: Plan) -> dict[str, LayerCost]:
        """The cost of each layer under a plan, in the order of the forward.

        A GP batch in which nothing is predicted or random needs no forward, and costs nothing; the engine leaves it out
        with `skip_forward=True`, as `adagp train` does.
        """
        resolved = resolve(plan, list(self._layers))
        covered = (task.source.name for task in resolved.tasks.values())
        key = (plan.phase.value, *covered, *(plan.source_of_uncovered(name) for name, _ in self._uncovered))
        if key not in self._known:
            nothing = {name: LayerCost() for name in self._layers}
            self._known[key] = self._trace(resolved) if resolved.needs_forward else nothing
        return self._known[key]

    def _trace(self, resolved: ResolvedPlan) -> dict[str, LayerCost]:
        for name, layer in self._layers.items():
            for parameter in layer.parameters():
                parameter.requires_grad_(resolved.tasks[name].source.needs_backward)
        for name, parameter in self._uncovered:
            parameter.requires_grad_(resolved.trains(name))
        found: dict[str, LayerCost] = {}

        def add(name: str, module: nn.Module, layer_input: Tensor, output: Tensor) -> None:
            products, positions = _products(module, layer_input, output)
            before = found.get(name, LayerCost())
            found[name] = LayerCost(
                before.forward + products,
                before.input_gradient + products * layer_input.requires_grad,
                before.weight_gradient + self._weight_gradient(resolved, name, module, products, positions),
            )

        hooks = [
            module.register_forward_hook(lambda module, inputs, output, name=name: add(name, module, inputs[0], output))
            for name, module in self._model.named_modules()
            if kind_of(module) is not None
        ]
        try:
            with torch.set_grad_enabled(resolved.plan.phase is not Phase.GP):
                self._model(torch.empty(self._input_shape, device="meta"))
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"input_shape={self._input_shape}: the model's forward cannot be followed by shapes alone: {error}"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def _weight_gradient(
        self, resolved: ResolvedPlan, name: str, module: nn.Module, products: int, positions: int
    ) -> int:
        if name not in self._layers:
            weight = module.weight
            return products if isinstance(weight, Tensor) and weight.requires_grad else 0
        parameters = sum(parameter.numel() for parameter in self._layers[name].parameters())
        return resolved.tasks[name].source.macs(
            GradientWork(products, positions, parameters, topk=self._k, features=self._features)
        )


def _products(module: nn.Module, layer_input: Tensor, output: Tensor) -> tuple[int, int]:
    """Multiply-adds of a layer's output, and in how many positions of one sample its weight is used."""
    weight, kind = module.weight, kind_of(module)
    assert isinstance(weight, Tensor)
    assert kind is not None
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        uses = layer_input.numel() // module.in_channels  # here it is the input that slides over the output
    else:
        uses = output.numel() // kind.rows(module, weight).shape[0]
    samples = output.shape[0] if kind.has_batch(module, output) else 1
    return uses * weight.numel(), uses // samples


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy with shapes and without numbers; weights that are shared stay shared."""
    memo: dict[int, Any] = {id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)
