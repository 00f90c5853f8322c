"""A predictor that sees the labels: learned feedback from the model's output to each layer, fitted in closed form."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adagp.layers import Layer, Rows
from adagp.layers.kinds import ChannelsLastConvolution
from adagp.predictors.interface import Features, FeatureSpec, TrainingExample
from adagp.quality import GradientAlignment

_EXACT = 1e-3
"""The relative error below which the weighted input counts as the gradient of the model's last layer."""


@dataclass
class _Feedback:
    """What is known of one layer, over the batches so far, later ones counting more.

    Attributes:
        inputs: `(groups, features, features)`: the sum of weighted inputs times themselves.
        products: `(groups, rows of a group x kernel positions, features)`: true gradients times weighted inputs.
        dot: `<prediction, true gradient>`, of predictions made before the batch was learned from.
        square: `|prediction|^2`.
        is_exact: Whether the weighted input itself was the last true gradient.
    """

    inputs: Tensor
    products: Tensor
    dot: float = 0.0
    square: float = 0.0
    is_exact: bool = False


@dataclass(frozen=True)
class _Shape:
    """How the rows of a layer are made up of groups, units, kernel positions and inputs."""

    groups: int
    units: int
    positions: int
    inputs: int
    inputs_last: bool

    @staticmethod
    def of(layer: Layer) -> "_Shape | None":
        """The shape of a layer; None for a kind whose rows are not known."""
        module: Any = layer.module
        groups = int(getattr(module, "groups", 1))
        inputs = getattr(module, "in_channels", None) or getattr(module, "in_features", None)
        if layer.is_part or type(inputs) is not int or layer.fan_in % (inputs // groups):
            return None
        each = inputs // groups
        last = isinstance(layer.kind, ChannelsLastConvolution)
        return _Shape(groups, layer.out // groups, layer.fan_in // each, each, last)

    def split(self, rows: Tensor) -> Tensor:
        """Rows as `(groups, units x positions, inputs)`."""
        if self.inputs_last:
            return rows.reshape(self.groups, self.units * self.positions, self.inputs)
        parts = rows.reshape(self.groups, self.units, self.inputs, self.positions)
        return parts.transpose(2, 3).reshape(self.groups, self.units * self.positions, self.inputs)

    def join(self, parts: Tensor) -> Tensor:
        """Undo `split`."""
        if not self.inputs_last:
            parts = parts.reshape(self.groups, self.units, self.positions, self.inputs).transpose(2, 3)
        return parts.reshape(self.groups * self.units, self.inputs * self.positions)


class LabelAwarePredictor:
    """Takes a layer's `grad_output` to be a matrix times the gradient of the loss at the model's output.

    Summed over samples, each with its pooled input, that gives a weight gradient. The matrix of each layer is the least
    squares fit to the true gradients of the batches so far; there is no learning rate. What is predicted is scaled by
    the factor that would have been best for the predictions so far, between 0 and 1.
    """

    needs = FeatureSpec(loss_grad=True, weighted_input=True)

    def __init__(
        self, *, features: int = 64, decay: float = 0.95, ridge: float = 1e-2, exact_head: bool = True, seed: int = 0
    ) -> None:
        """Set what is fitted.

        Args:
            features: Where the model has more outputs, their gradient is projected at random to this many numbers.
            decay: The weight of the past in each batch.
            ridge: Added to the diagonal of the normal equations, as a share of its mean.
            exact_head: Give a last Linear layer its true gradient, which the features contain.
            seed: Decides the random projection.
        """
        if features < 1:
            raise ValueError(f"features = {features}: must be at least 1")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay = {decay}: must be from 0 to 1")
        if not 0 < ridge < float("inf"):
            raise ValueError(f"ridge = {ridge}: must be a positive number")
        self._features, self._decay, self._ridge, self._exact_head, self._seed = (
            features,
            decay,
            ridge,
            exact_head,
            seed,
        )
        self._shapes: dict[str, _Shape] = {}
        self._known: dict[str, _Feedback] = {}
        self._projection: Tensor | None = None

    def attach(self, layers: Sequence[Layer]) -> None:
        """Find the layers whose rows are known."""
        found = {layer.name: _Shape.of(layer) for layer in layers}
        self._shapes = {name: shape for name, shape in found.items() if shape is not None}

    def layers_to_train_on(self) -> Collection[str]:
        """All that can be predicted."""
        return self._shapes.keys()

    def trust(self, layer: str) -> float:
        """The factor that would have been best so far; 1 for an exact last layer, 0 before two examples."""
        known = self._known.get(layer)
        if known is None:
            return 0.0
        if self._is_exact(known):
            return 1.0
        return min(max(known.dot / known.square, 0.0), 1.0) if known.square > 0 else 0.0

    def _is_exact(self, known: _Feedback) -> bool:
        return self._exact_head and known.is_exact

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """The feedback times the weighted inputs, scaled by trust."""
        for layer, features in requests:
            trust = self.trust(layer.name)
            rows = self._rows(layer, features) if trust > 0 else None
            if rows is None:
                yield None
            else:
                yield Rows(rows.weight * trust, None if rows.bias is None else rows.bias * trust)

    def _rows(self, layer: Layer, features: Features) -> Rows | None:
        """The prediction, not scaled; None before the first example."""
        known, shape = self._known.get(layer.name), self._shapes.get(layer.name)
        if known is None or shape is None or features.weighted_input is None or features.loss_grad is None:
            return None
        if self._is_exact(known):
            return Rows(features.weighted_input, None if layer.bias is None else features.loss_grad[:, None])
        diagonal = known.inputs.diagonal(dim1=1, dim2=2)
        ridge = torch.diag_embed((self._ridge * diagonal.mean(1, keepdim=True)).expand_as(diagonal).clamp(min=1e-30))
        feedback = torch.linalg.solve(known.inputs + ridge, known.products.transpose(1, 2)).transpose(1, 2)
        weight = shape.join(feedback @ self._weighted(shape, features.weighted_input))
        bias = None
        if layer.bias is not None:  # the same feedback, whatever the place in the kernel
            mean = feedback.reshape(layer.out, shape.positions, -1).mean(1)
            bias = mean @ self._projected(features.loss_grad[:, None])
        return Rows(weight, bias)

    def _weighted(self, shape: _Shape, weighted_input: Tensor) -> Tensor:
        """`(groups, features, inputs)`."""
        projected = self._projected(weighted_input)
        return projected.reshape(len(projected), shape.groups, shape.inputs).transpose(0, 1)

    def _projected(self, outputs: Tensor) -> Tensor:
        """`(model outputs, ...)` as `(features, ...)`."""
        if len(outputs) <= self._features:
            return outputs
        if self._projection is None:
            generator = torch.Generator().manual_seed(self._seed)
            drawn = torch.randn(self._features, len(outputs), generator=generator) / self._features**0.5
            self._projection = drawn.to(outputs.device)
        return self._projection @ outputs

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Add each example to its layer's normal equations. Returns how the predictions before that align."""
        found = {}
        with torch.no_grad():
            for example in examples:
                name, features = example.layer.name, example.features
                if features is None or features.weighted_input is None or name not in self._shapes:
                    continue
                predicted = self._rows(example.layer, features)
                if predicted is not None:
                    found[name] = example.compare(predicted)
                self._add(example, features.weighted_input, found.get(name))
        return found

    def _add(self, example: TrainingExample, weighted_input: Tensor, before: GradientAlignment | None) -> None:
        name, shape = example.layer.name, self._shapes[example.layer.name]
        seen, true = self._weighted(shape, weighted_input), shape.split(example.true_grad.weight)
        inputs, products = seen @ seen.transpose(1, 2), true @ seen.transpose(1, 2)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Feedback(torch.zeros_like(inputs), torch.zeros_like(products))
        known.inputs.mul_(self._decay).add_(inputs)
        known.products.mul_(self._decay).add_(products)
        if before is not None:
            known.dot = self._decay * known.dot + before.dot
            known.square = self._decay * known.square + before.predicted_square
        known.is_exact = _agree(weighted_input, example.true_grad.weight)

    def state_dict(self) -> dict[str, Any]:
        """The normal equations of each layer, and how good predictions were."""
        return {"feedback": {name: dict(vars(known)) for name, known in self._known.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave.

        Raises:
            ValueError: When it is of other layers.
        """
        loaded = {}
        for name, saved in state["feedback"].items():
            shape = self._shapes.get(name)
            rows = 0 if shape is None else shape.units * shape.positions
            features = saved["inputs"].shape[-1]
            wanted = [(shape.groups, features, features), (shape.groups, rows, features)] if shape else []
            if [tuple(saved[part].shape) for part in ("inputs", "products")] != wanted:
                raise ValueError(f"the predictor's state for layer {name!r} does not fit it")
            tensors = {part: saved[part].clone() for part in ("inputs", "products")}
            loaded[name] = _Feedback(**{**saved, **tensors})
        self._known, self._projection = loaded, None


def _agree(weighted_input: Tensor, true: Tensor) -> bool:
    if weighted_input.shape != true.shape:
        return False
    return bool((weighted_input - true).norm() <= _EXACT * true.norm())
