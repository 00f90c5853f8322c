"""The paper's network, one for all layers, and how it learns.

The network pools a layer's reorganised output to a grid, passes it through a small convolution, and maps the result
with one fully connected layer to a row of the weight gradient. That layer is sized by the largest `fan_in`; smaller
layers use its first units (ADA-GP, section 3.6).
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adagp.defaults import PREDICTOR_CHANNELS, PREDICTOR_GRID
from adagp.layers import Layer, Rows
from adagp.predictors.adam import Adam
from adagp.predictors.grid_convolution import GridConvolution, initial_values
from adagp.predictors.interface import (
    Features,
    FeatureSpec,
    Pooling,
    SumOverRanks,
    TrainingExample,
    no_other_ranks,
)
from adagp.quality import GradientAlignment, mean_absolute_percentage_errors

_MAPE_ROWS = 8
_MAPE_EVERY = 8


@dataclass
class _LayerRecord:
    """What the network keeps of one layer.

    Attributes:
        mean_squares: The running mean square of each block of its true gradient; empty before the first.
        mape: The last MAPE that was measured; 1 is that of no prediction at all.
        examples: The number of examples it was trained on.
    """

    mean_squares: list[float] = field(default_factory=list)
    mape: float = 1.0
    examples: int = 0


class _Units(NamedTuple):
    """The units of the last layer that predict one block, each a column, and the gradient of their weights."""

    weights: Tensor
    grad: Tensor


class GradientNetwork:
    """The paper's network: one small network shared by all layers, from features to rows.

    What is done with its rows is a predictor's business: `PaperPredictor` applies them, `TrustedPredictor` adds them to
    a running mean. Its output starts at zero and its targets are divided by the running root mean square of the
    layer's true gradient, so that an untrained network changes nothing. `literal=True` is the recipe as printed:
    random output weights, raw inputs and targets.
    """

    def __init__(
        self,
        *,
        grid: int = PREDICTOR_GRID,
        channels: int = PREDICTOR_CHANNELS,
        lr: float = 1e-4,
        milestones: Sequence[int] = (10_000, 15_000),
        gamma: float = 0.1,
        predict_bias: bool = True,
        layers_per_step: int | None = None,
        steps_per_round: int = 1,
        samples: int | None = None,
        literal: bool = False,
        seed: int = 0,
    ) -> None:
        """Set the network's size and how it learns.

        Args:
            grid: Outputs are pooled to `grid x grid`.
            channels: Channels of the convolution; the last layer has `grid x grid x channels` inputs and a constant.
            lr: Learning rate of the network's Adam.
            milestones: Learning steps at which MultiStepLR multiplies the rate by `gamma`; the paper gives none.
            gamma: See `milestones`.
            predict_bias: Give biases one extra output; otherwise their gradient is None in GP.
            layers_per_step: Learn from this many layers a step, in turn, instead of all.
            steps_per_round: Learn from fewer where so many steps suffice for a turn of every layer: networks of few
                layers have short batches.
            samples: Average at most this many samples of a batch, evenly spread, instead of all; fewer, down to a
                quarter, where a sample has more than 256 positions.
            literal: The printed recipe; its first predictions may be many times larger than true gradients.
            seed: Seeds the initial weights and the order of layers; the global generator is left alone.
        """
        if layers_per_step is not None and layers_per_step < 1:
            raise ValueError("layers_per_step: must be at least 1, or None for all layers")
        if steps_per_round < 1:
            raise ValueError(f"steps_per_round = {steps_per_round}: must be at least 1")
        self.needs = FeatureSpec(output=Pooling(grid, samples))
        self._grid, self._channels, self._lr = grid, channels, lr
        self._milestones, self._gamma = list(milestones), gamma
        self._predict_bias = predict_bias
        self._layers_per_step, self._steps_per_round = layers_per_step, steps_per_round
        self._literal, self._seed = literal, seed
        self._turn = 0
        self._round: tuple[int, list[str]] | None = None  # a round's number, and its order
        self._records: dict[str, _LayerRecord] = {}
        self._total: SumOverRanks = no_other_ranks

    def share_rows(self, total: SumOverRanks) -> None:
        """Learn together with ranks that hold other rows: the network is the same on all of them."""
        self._total = total

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size the last layer by the largest `fan_in`, with unit 0 for biases."""
        device = layers[0].weight.device if layers else torch.device("cpu")
        self._names = [layer.name for layer in layers]
        self._round = None
        self._records = {name: _LayerRecord() for name in self._names}
        features = self._grid * self._grid * self._channels
        units = 1 + max((layer.fan_in for layer in layers), default=0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            convolution = initial_values(self._channels)
            linear = nn.Linear(features, units, dtype=torch.float32)
        last = torch.cat([linear.weight.detach(), linear.bias.detach()[:, None]], dim=1).t()  # the constant's row too
        if not self._literal:
            last = torch.zeros_like(last)
        # One vector for Adam. Of the last layer each column is a unit: products with rows are quickest that way.
        self._values = torch.cat([convolution, last.flatten()]).to(device)
        self._grads = torch.zeros_like(self._values)
        first = len(convolution)
        self._last, self._grad_last = (one[first:].view(last.shape) for one in (self._values, self._grads))
        self._conv, self._grad_conv = GridConvolution(self._values[:first], self._grid), self._grads[:first]
        self._adam = Adam(self._values, self._lr, self._milestones, self._gamma)
        self._units = {layer.name: self._units_of(layer) for layer in layers}

    def layers_to_train_on(self) -> Collection[str]:
        """All layers, or the next few of a round that has each of them once.

        Every round has an order of its own: a plan with a rhythm must not hide the same layers again and again.
        """
        count = len(self._names)
        if count == 0:
            return set()
        few = min(self._layers_per_step or count, -(-count // self._steps_per_round))
        rounds, place = divmod(self._turn, -(-count // few))
        if self._round is None or self._round[0] != rounds:
            self._round = rounds, random.Random(f"{self._seed} {rounds}").sample(self._names, count)
        return set(self._round[1][place * few : (place + 1) * few])

    def _inputs(self, requests: Sequence[tuple[Layer, Features]]) -> Tensor:
        """The pooled outputs of all these layers, stacked, each normalised to unit RMS: layer scales differ widely.

        Of each layer there are those of the rows that this rank holds, and the RMS is that of all. A constant 1 ends
        each row.
        """
        outputs = [features.output for _, features in requests if features.output is not None]
        if not self._literal:
            norms = torch._foreach_norm(outputs)
            torch._foreach_div_(norms, [output.numel() ** 0.5 for output in outputs])
            torch._foreach_clamp_min_(norms, 1e-12)
            outputs = list(torch._foreach_div(outputs, norms))
        own = [
            output if layer.own is None else output[layer.own]
            for output, (layer, _) in zip(outputs, requests, strict=True)
        ]
        return nn.functional.pad(torch.cat(own), (0, 1), value=1.0)

    def blocks(self, layer: Layer, rows: Rows) -> list[Tensor]:
        """The parts of a gradient that the network predicts: the weight's rows and, if wanted, the bias's."""
        return rows.blocks() if self._has_bias(layer) else [rows.weight]

    def _has_bias(self, layer: Layer) -> bool:
        return self._predict_bias and layer.bias is not None

    def _units_of(self, layer: Layer) -> list[_Units]:
        """The units that predict each block of a layer."""
        columns = [slice(1, 1 + layer.fan_in), *([slice(0, 1)] if self._has_bias(layer) else [])]
        return [_Units(self._last[:, one], self._grad_last[:, one]) for one in columns]

    def _scales(self, layer: Layer, squares: Sequence[float] = ()) -> list[float]:
        """The running root mean square of each block's true gradient; `squares` stand in while that is 0."""
        if self._literal:
            return [1.0, 1.0]
        now = _mean_squares(layer, squares) or [0.0, 0.0]
        known = self._records[layer.name].mean_squares or now
        return [(past or present) ** 0.5 for past, present in zip(known, now, strict=False)]

    def predict_scaled(
        self, requests: Sequence[tuple[Layer, Features]], bases: Sequence[Rows | None], factors: Sequence[float]
    ) -> Iterator[Rows]:
        """`factor x (base + prediction)` of each layer; without a base, the prediction alone."""
        if not requests:
            return
        hidden = self._conv.hidden(self._inputs(requests))
        parts = torch.split(hidden, [layer.own_out for layer, _ in requests])
        for (layer, _), part, base, factor in zip(requests, parts, bases, factors, strict=True):
            yield self._rows(layer, part, base, self._scales(layer), factor)

    def _rows(
        self, layer: Layer, hidden: Tensor, base: Rows | None, scales: Sequence[float], factor: float = 1.0
    ) -> Rows:
        bases = [None, None] if base is None else self.blocks(layer, base)
        predicted: list[Tensor] = []
        for units, scale, start in zip(self._units[layer.name], scales, bases, strict=False):
            scaled = scale * factor
            predicted.append(
                (hidden @ units.weights).mul_(scaled)
                if start is None
                else torch.addmm(start, hidden, units.weights, beta=factor, alpha=scaled)
            )
        return Rows(predicted[0], predicted[1] if len(predicted) > 1 else None)

    def fit(
        self, examples: Sequence[TrainingExample], bases: Mapping[str, Rows], sums: Sequence[Tensor] = ()
    ) -> tuple[dict[str, GradientAlignment], list[Tensor]]:
        """One Adam step towards `true_grad - base` on the mean squared error of scaled rows, where there are features.

        Returns:
            The alignment of `base + prediction`, as it was before the step, with the true gradient; and the totals of
            `sums` over ranks, which travel in the same message.
        """
        layers_to_train_on = [example for example in examples if example.features is not None]
        if layers_to_train_on:
            found, totals = self._step(layers_to_train_on, bases, sums)
        else:
            found, totals = {}, self._total(sums)
        for example in examples:
            self._follow_scale(example)
        self._turn += 1
        return found, totals

    def _step(
        self, examples: Sequence[TrainingExample], bases: Mapping[str, Rows], sums: Sequence[Tensor]
    ) -> tuple[dict[str, GradientAlignment], list[Tensor]]:
        inputs = self._inputs([(one.layer, one.features) for one in examples if one.features is not None])
        hidden = self._conv.hidden(inputs)
        grad_hidden = torch.zeros_like(hidden)
        self._grads.zero_()
        sizes = [example.layer.own_out for example in examples]
        parts = hidden.split(sizes)
        products = [
            product
            for example, part, grad in zip(examples, parts, grad_hidden.split(sizes), strict=True)
            for product in self._work(example, part, grad, bases.get(example.layer.name), 2 / len(examples))
        ]
        due = [one for one in zip(examples, parts, strict=True) if self._is_mape_due(one[0].layer)]
        mapes = self._mapes(due, bases)
        self._grad_conv.copy_(self._conv.gradient(inputs, hidden, grad_hidden))
        numbers, grads, *totals = self._total([torch.stack([*products, *mapes]), self._grads, *sums])
        self._adam.step(grads)
        self._conv.changed()
        values = iter(numbers.tolist())
        aligned = [[next(values) for _ in self._units[example.layer.name]] for example in examples for _ in range(2)]
        self._keep_mapes(examples, dict(zip((example.layer.name for example, _ in due), values, strict=True)))
        found = {
            example.layer.name: self.alignment(example, sum(dots), sum(squares))
            for example, dots, squares in zip(examples, aligned[::2], aligned[1::2], strict=True)
        }
        return found, totals

    def alignment(self, example: TrainingExample, dot: float, square: float) -> GradientAlignment:
        """The alignment of a prediction, given its inner product with the true gradient and its sum of squares.

        MAPE is that of the last example that measured it, or 1, that of no prediction at all.
        """
        layer = example.layer
        blocks = 1 + self._has_bias(layer)
        return GradientAlignment(
            dot,
            square,
            true_square=sum(example.squares[:blocks]),
            count=layer.out * (layer.fan_in + self._has_bias(layer)),
            mape=self._records[layer.name].mape,
        )

    def _work(
        self, example: TrainingExample, hidden: Tensor, grad_hidden: Tensor, base: Rows | None, weight: float
    ) -> list[Tensor]:
        """Add the gradients of one example's loss.

        Returns:
            What gives its alignment: `<prediction, true gradient>` for each block, then `|prediction|^2` for each.
        """
        layer = example.layer
        true_grads = self.blocks(layer, example.true_grad)
        scales = self._scales(layer, example.squares)
        predicted = self._rows(layer, hidden, base, scales).blocks()
        flat = [block.view(-1) for block in predicted]
        products = [one.dot(true.reshape(-1)) for one, true in zip(flat, true_grads, strict=True)]
        products += [one.dot(one) for one in flat]
        for true_grad, block, units, scale in zip(true_grads, predicted, self._units[layer.name], scales, strict=False):
            error = block.sub_(true_grad)
            factor = weight / (layer.out * true_grad.shape[1] * max(scale, 1e-30))
            grad_hidden.addmm_(error, units.weights.t(), alpha=factor)
            units.grad.addmm_(hidden.t(), error, alpha=factor)
        return products

    def _mapes(self, due: Sequence[tuple[TrainingExample, Tensor]], bases: Mapping[str, Rows]) -> list[Tensor]:
        """MAPE of the weights of these examples, on a few rows: a running figure needs no more.

        A rank that holds some of these rows measures those, and its share of them weighs the result.
        """
        if not due:
            return []
        shares, predicted, true = [], [], []
        for example, hidden in due:
            layer = example.layer
            rows = slice(None, None, -(-layer.out // _MAPE_ROWS))
            pick = layer.own_part(rows)
            base = bases.get(layer.name)
            sample = None if base is None else Rows(base.weight[pick], None)
            few = example.true_grad.weight[pick]
            shares.append(len(few) / len(range(layer.out)[rows]))
            predicted.append(self._rows(layer, hidden[pick], sample, self._scales(layer)).weight.flatten())
            true.append(few.flatten())
        found = mean_absolute_percentage_errors(predicted, true)
        return [self._values.new_tensor(share * mape) for share, mape in zip(shares, found, strict=True)]

    def _keep_mapes(self, examples: Sequence[TrainingExample], mapes: Mapping[str, float]) -> None:
        for example in examples:
            record = self._records[example.layer.name]
            record.mape = mapes.get(example.layer.name, record.mape)
            record.examples += 1

    def _is_mape_due(self, layer: Layer) -> bool:
        """In every eighth example of a layer, the first one among them."""
        return self._records[layer.name].examples % _MAPE_EVERY == 0

    def _follow_scale(self, example: TrainingExample) -> None:
        new = _mean_squares(example.layer, example.squares)
        record = self._records[example.layer.name]
        old = record.mean_squares or new
        record.mean_squares = [0.9 * a + 0.1 * b for a, b in zip(old, new, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Weights, Adam, and the scales."""
        return {
            "values": self._values.clone(),
            "adam": self._adam.state_dict(),
            "layers": {name: asdict(record) for name, record in self._records.items()},
            "options": self._options(),
            "turn": self._turn,
        }

    def _options(self) -> dict[str, int]:
        """What a saved predictor's weights can only be used with."""
        return {
            "grid": self._grid,
            "channels": self._channels,
            "predict_bias": self._predict_bias,
            "literal": self._literal,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        for option, here in self._options().items():
            if state["options"][option] != here:
                raise ValueError(
                    f"the saved predictor has {option}={state['options'][option]}, this one {option}={here}: "
                    "build it with the same options"
                )
        self._values.copy_(state["values"])
        self._conv.changed()
        self._adam.load_state_dict(state["adam"])
        self._records = {name: _LayerRecord(**record) for name, record in state["layers"].items()}
        self._turn = state["turn"]


def _mean_squares(layer: Layer, squares: Sequence[float]) -> list[float]:
    counts = (layer.out * layer.fan_in, layer.out)
    return [square / count for square, count in zip(squares, counts, strict=False)]
