"""The cost of a plan: multiply-adds of a model's layers in one batch.

A copy of the model is traced once under each plan, with the graph cut as the engine cuts it. Autograd then decides
which layers pass `grad_output` on. Only the layers' products count: norms, activations, the optimizer and the
predictor's own learning do not.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adagp import coarse
from adagp.cost.tracing import Call, Product, Trace, trace_forward
from adagp.defaults import PREDICTOR_CHANNELS, PREDICTOR_GRID, SAMPLED_RATE
from adagp.layers import kind_of
from adagp.layers.coverage import find_layers, parts_by_weight, uncovered_parameters
from adagp.schedules import GradientWork, Phase, Plan, ResolvedPlan, always_backprop, resolve

PREDICTOR_FEATURES = PREDICTOR_GRID**2 * PREDICTOR_CHANNELS + 1
"""Inputs of the default predictor's last layer, the constant included."""


@dataclass(frozen=True)
class LayerCost:
    """Multiply-adds of one layer in one batch.

    Attributes:
        forward: For the output.
        input_gradient: For the gradient of the input; 0 if no earlier layer needs it.
        weight_gradient: For the weight gradient, whichever source supplies it.
    """

    forward: int = 0
    input_gradient: int = 0
    weight_gradient: int = 0

    @property
    def total(self) -> int:
        """The sum of all three."""
        return self.forward + self.input_gradient + self.weight_gradient

    def __add__(self, other: "LayerCost") -> "LayerCost":
        """The cost of two calls of the layer."""
        return LayerCost(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
        )


class CostModel:
    """The cost of plans for one model and one input shape."""

    def __init__(
        self,
        model: nn.Module,
        input_shape: Sequence[int],
        *,
        k: int = 1,
        rate: float = SAMPLED_RATE,
        features: int = PREDICTOR_FEATURES,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Copy the model's shapes; the model itself is left as it is.

        Args:
            model: Any model whose forward takes one tensor.
            input_shape: The shape of that tensor, batch first.
            k: Output gradients that `topk` keeps per sample and channel.
            rate: The share of positions that `sampled` draws where a plan does not say.
            features: Inputs of the predictor's last layer.
            dtype: The type of the input: `torch.long` for tokens.
        """
        self._model = _on_meta(model).train()
        self._input_shape, self._dtype = tuple(input_shape), dtype
        self._k, self._rate, self._features = k, rate, features
        found, _ = find_layers(self._model, self._model.parameters())
        self._layers = {layer.name: layer for layer in found if layer.weight.requires_grad}
        others = uncovered_parameters(self._model, self._layers.values())
        self._uncovered = [(module, parameter) for module, parameter in others if parameter.requires_grad]
        kinds = {name: kind_of(module) for name, module in self._model.named_modules()}
        self._kinds = {name: kind for name, kind in kinds.items() if kind is not None}
        self._parts = parts_by_weight(self._model)
        self._known: dict[tuple[object, ...], dict[str, LayerCost]] = {}
        self._plain = self.plan_cost(always_backprop()(0))

    def plan_cost(self, plan: Plan) -> int:
        """Multiply-adds of one batch under a plan."""
        return sum(cost.total for cost in self.layers(plan).values())

    def relative(self, schedule: Callable[[int], Plan], steps: Iterable[int]) -> float:
        """Multiply-adds of these batches under a schedule, relative to the same number of plain BP batches."""
        costs = [self.plan_cost(schedule(step)) for step in steps]
        if not costs:
            raise ValueError("steps: is empty; give for example range(8)")
        return sum(costs) / (len(costs) * self._plain)

    def layers(self, plan: Plan) -> dict[str, LayerCost]:
        """The cost of each layer under a plan, in the order of the forward.

        A GP batch that needs no activations costs nothing: with `skip_forward=True`, which `adagp train` sets, the
        engine leaves its forward out.
        """
        resolved = resolve(plan, list(self._layers))
        if resolved.is_local:
            raise ValueError(
                "source local: its cuts and heads are found in training, so its cost cannot be counted before; "
                "adagp.measure times a batch"
            )
        covered = (task.source.name for task in resolved.tasks.values())
        rates = (plan.rates.get(name) for name in self._layers)
        others = (plan.source_of_uncovered(name) for name, _ in self._uncovered)
        key = (plan.scale, plan.phase.value, *rates, *covered, *others)
        if key not in self._known:
            nothing = {name: LayerCost() for name in self._layers}
            self._known[key] = self._count(resolved) if resolved.needs_forward else nothing
        return self._known[key]

    def _count(self, resolved: ResolvedPlan) -> dict[str, LayerCost]:
        """Count one batch, with the graph cut as the engine cuts it."""
        shape = self._resized(resolved.plan.scale)
        for name, layer in self._layers.items():
            for parameter in layer.parameters():
                parameter.requires_grad_(resolved.tasks[name].source.needs_backward)
        for name, parameter in self._uncovered:
            parameter.requires_grad_(resolved.trains(name))
        try:
            with torch.set_grad_enabled(resolved.plan.phase is not Phase.GP):
                trace = trace_forward(self._model, torch.empty(shape, dtype=self._dtype, device="meta"))
        except ValueError as error:
            raise ValueError(f"input_shape={shape}: {error}") from error
        found: dict[str, LayerCost] = {}
        for (call, name), products in self._layer_calls(trace).items():
            found[name] = found.get(name, LayerCost()) + LayerCost(
                sum(product.macs for product in products),
                sum(product.macs for product in products if product.input_requires_grad),
                self._weight_gradient(resolved, call, name, sum(product.macs for product in products)),
            )
        return found

    def _resized(self, scale: float) -> tuple[int, ...]:
        """The input shape at a scale.

        Raises:
            ValueError: When the input is no batch of images or tokens.
        """
        if scale == 1:
            return self._input_shape
        if len(self._input_shape) == 2 and not self._dtype.is_floating_point:
            return self._input_shape[0], coarse.size(self._input_shape[1], scale)
        if len(self._input_shape) != 4:
            raise ValueError(
                f"input_shape={self._input_shape}: coarse batches are counted for images, (N, C, H, W), and for tokens"
            )
        return (*self._input_shape[:2], *(coarse.size(side, scale) for side in self._input_shape[2:]))

    def _layer_calls(self, trace: Trace) -> dict[tuple[Call, str], list[Product]]:
        """Every call of a layer with the products it makes; a product belongs to the innermost layer around it.

        The products of a module with several layers belong to that whose weight they have; others are nobody's.
        """
        modules = {name.rpartition(".")[0] for name in self._parts.values()}
        made: dict[tuple[Call, str], list[Product]] = {
            (call, call.module): [] for call in trace.calls if call.module in self._kinds and call.module not in modules
        }
        for product in trace.products:
            if product.weight in self._parts and product.calls:
                made.setdefault((product.calls[-1], self._parts[product.weight]), []).append(product)
                continue
            layer_call = next((call for call in reversed(product.calls) if (call, call.module) in made), None)
            if layer_call is not None:
                made[layer_call, layer_call.module].append(product)
        return made

    def _weight_gradient(self, resolved: ResolvedPlan, call: Call, name: str, macs: int) -> int:
        module, kind = self._model.get_submodule(call.module), self._kinds[call.module]
        if name not in self._layers:
            weight = getattr(module, "weight", None)
            return macs if isinstance(weight, Tensor) and weight.requires_grad else 0
        layer = self._layers[name]
        samples = call.output.shape[0] if call.output is not None and kind.has_batch(module, call.output) else 1
        positions = max(1, macs // layer.weight.numel() // samples)  # 1 for a weight that makes no product
        parameters = sum(parameter.numel() for parameter in layer.parameters())
        rate = resolved.plan.rates.get(name, self._rate)
        return resolved.tasks[name].source.macs(
            GradientWork(macs, positions, parameters, topk=self._k, features=self._features, rate=rate)
        )


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy on the meta device; shared weights stay shared."""
    memo: dict[int, Any] = {id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)
