"""The paper's network, one for all layers, and how it learns.

The network pools a layer's reorganised output to a grid, passes it through a small convolution, and maps the result
with one fully connected layer to a row of the weight gradient. That layer is sized by the largest `fan_in`; smaller
layers use its first units (ADA-GP, section 3.6).
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from adagp.defaults import PREDICTOR_CHANNELS, PREDICTOR_GRID
from adagp.layers import Layer, Rows
from adagp.predictors.grid_convolution import GridConvolution
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


@dataclass(frozen=True)
class _ExampleWork:
    """What one example adds to a learning step; inner products are fetched from the device for all examples at once."""

    grad_hidden: Tensor
    products: list[Tensor]
    """For each block: `<prediction, true gradient>` and `|prediction|^2`."""


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
            samples: Average at most this many samples of a batch, evenly spread, instead of all; fewer, down to a
                quarter, where a sample has more than 256 positions.
            literal: The printed recipe; its first predictions may be many times larger than true gradients.
            seed: Seeds the initial weights and the order of layers; the global generator is left alone.
        """
        if layers_per_step is not None and layers_per_step < 1:
            raise ValueError("layers_per_step: must be at least 1, or None for all layers")
        self.needs = FeatureSpec(output=Pooling(grid, samples))
        self._grid, self._channels, self._lr = grid, channels, lr
        self._milestones, self._gamma = list(milestones), gamma
        self._predict_bias, self._layers_per_step = predict_bias, layers_per_step
        self._literal, self._seed = literal, seed
        self._turn = 0
        self._round: tuple[int, list[str]] | None = None  # a round's number, and its order
        self._records: dict[str, _LayerRecord] = {}
        self._counted: tuple[tuple[tuple[int, ...], torch.device], Tensor, Tensor] | None = None
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
            self._conv = GridConvolution(self._channels, self._grid).to(device)
            last = nn.Linear(features, units, dtype=torch.float32)
        weights = torch.cat([last.weight.detach(), last.bias.detach()[:, None]], dim=1)  # the constant is an input too
        self._last = (weights if self._literal else torch.zeros_like(weights)).to(device)  # autograd takes no part
        self._fused = device.type in ("cpu", "cuda")  # one call instead of twenty
        self._optimizer = torch.optim.Adam([*self._conv.parameters(), self._last], lr=self._lr, fused=self._fused)
        self._scheduler = torch.optim.lr_scheduler.MultiStepLR(self._optimizer, self._milestones, self._gamma)

    def layers_to_train_on(self) -> Collection[str]:
        """All layers, or the next few of a round that has each of them once.

        Every round has an order of its own: a plan with a rhythm must not hide the same layers again and again.
        """
        count = len(self._names)
        few = min(self._layers_per_step or count, count)
        if few == 0:
            return set()
        rounds, place = divmod(self._turn, -(-count // few))
        if self._round is None or self._round[0] != rounds:
            self._round = rounds, random.Random(f"{self._seed} {rounds}").sample(self._names, count)
        return set(self._round[1][place * few : (place + 1) * few])

    def _inputs(self, requests: Sequence[tuple[Layer, Features]]) -> Tensor:
        """The pooled outputs of all these layers, stacked, each normalised to unit RMS: layer scales differ widely.

        Of each layer there are those of the rows that this rank holds, and the RMS is that of all.
        """
        outputs = [features.output for _, features in requests if features.output is not None]
        pooled = torch.cat(outputs)
        if not self._literal:
            rows, roots = self._row_counts(tuple(len(output) for output in outputs), pooled.device)
            scales = (torch.stack(torch._foreach_norm(outputs)) / roots).clamp(min=1e-12)
            pooled = pooled / scales.repeat_interleave(rows, output_size=len(pooled))[:, None]
        if all(layer.own is None for layer, _ in requests):
            return pooled
        parts = torch.split(pooled, [len(output) for output in outputs])
        return torch.cat([part[layer.own or slice(None)] for part, (layer, _) in zip(parts, requests, strict=True)])

    def _row_counts(self, counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """These numbers of rows as a tensor, and the roots of the numbers of entries in them."""
        if self._counted is None or self._counted[0] != (counts, device):
            rows = torch.tensor(counts, device=device)
            self._counted = (counts, device), rows, (rows * self._grid**2).float().sqrt()
        return self._counted[1:]

    def blocks(self, layer: Layer, rows: Rows) -> list[Tensor]:
        """The parts of a gradient that the network predicts: the weight's rows and, if wanted, the bias's."""
        return rows.blocks() if self._has_bias(layer) else [rows.weight]

    def _has_bias(self, layer: Layer) -> bool:
        return self._predict_bias and layer.bias is not None

    def _units(self, layer: Layer) -> list[slice]:
        """Which units of the last layer predict each block."""
        weight = slice(1, 1 + layer.fan_in)
        return [weight, slice(0, 1)] if self._has_bias(layer) else [weight]

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
        for units, scale, start in zip(self._units(layer), scales, bases, strict=False):
            weights, scaled = self._last[units].t(), scale * factor
            predicted.append(
                (hidden @ weights).mul_(scaled)
                if start is None
                else torch.addmm(start, hidden, weights, beta=factor, alpha=scaled)
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
        grad_last = torch.zeros_like(self._last)
        inputs = self._inputs([(one.layer, one.features) for one in examples if one.features is not None])
        hidden = self._conv.hidden(inputs)
        parts = torch.split(hidden, [example.layer.own_out for example in examples])
        works = [
            self._work(example, part, bases.get(example.layer.name), grad_last, 2 / len(examples))
            for example, part in zip(examples, parts, strict=True)
        ]
        mapes = self._mapes(examples, parts, bases)
        self._conv.learn(inputs, hidden, torch.cat([work.grad_hidden for work in works]))
        products = torch.stack([product for work in works for product in work.products])
        used = grad_last[: 1 + max(example.layer.fan_in for example in examples)]  # all other units rest
        grads = [used, *(part.grad for part in self._conv.parameters() if part.grad is not None)]
        products, mapes, *totals = self._total([products, mapes, *grads, *sums])
        for grad, total in zip(grads, totals, strict=False):
            grad.copy_(total)
        self._last.grad = grad_last
        self._optimizer.step()
        self._conv.changed()
        self._scheduler.step()
        self._keep_mapes(examples, mapes)
        values = iter(products.tolist())
        found = {}
        for example, work in zip(examples, works, strict=True):
            own = [next(values) for _ in work.products]
            found[example.layer.name] = self.alignment(example, dot=sum(own[::2]), square=sum(own[1::2]))
        return found, totals[len(grads) :]

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
        self, example: TrainingExample, hidden: Tensor, base: Rows | None, grad_last: Tensor, weight: float
    ) -> "_ExampleWork":
        """Add the gradient of one example's loss to `grad_last`; return the inner products that give its alignment."""
        true_grads = self.blocks(example.layer, example.true_grad)
        scales = self._scales(example.layer, example.squares)[: len(true_grads)]
        predicted = self._rows(example.layer, hidden, base, scales).blocks()
        grad_hidden = torch.zeros_like(hidden)
        products: list[Tensor] = []
        for true_grad, block, units, scale in zip(
            true_grads, predicted, self._units(example.layer), scales, strict=True
        ):
            flat = block.flatten()
            products += [flat @ true_grad.flatten(), flat @ flat]
            error = block.sub_(true_grad)
            factor = weight / (example.layer.out * true_grad.shape[1] * max(scale, 1e-30))
            grad_hidden.addmm_(error, self._last[units], alpha=factor)
            # `.t()` after the product: the same product the other way round takes three times as long.
            grad_last[units].add_((hidden.t() @ error).t(), alpha=factor)
        return _ExampleWork(grad_hidden, products)

    def _mapes(self, examples: Sequence[TrainingExample], parts: Sequence[Tensor], bases: Mapping[str, Rows]) -> Tensor:
        """MAPE of each weight that is due, on a few rows: a running figure needs no more.

        A rank that holds some of these rows measures those, and its share of them weighs the result.
        """
        shares, predicted, true = [], [], []
        for example, hidden in zip(examples, parts, strict=True):
            layer = example.layer
            if not self._is_mape_due(layer):
                continue
            rows = slice(None, None, -(-layer.out // _MAPE_ROWS))
            pick = layer.own_part(rows)
            base = bases.get(layer.name)
            sample = None if base is None else Rows(base.weight[pick], None)
            few = example.true_grad.weight[pick]
            shares.append(len(few) / len(range(layer.out)[rows]))
            predicted.append(self._rows(layer, hidden[pick], sample, self._scales(layer)).weight.flatten())
            true.append(few.flatten())
        found = mean_absolute_percentage_errors(predicted, true) if shares else []
        return self._last.new_tensor([share * mape for share, mape in zip(shares, found, strict=True)])

    def _keep_mapes(self, examples: Sequence[TrainingExample], mapes: Tensor) -> None:
        due = [example.layer for example in examples if self._is_mape_due(example.layer)]
        for layer, mape in zip(due, mapes.tolist(), strict=True):
            self._records[layer.name].mape = mape
        for example in examples:
            self._records[example.layer.name].examples += 1

    def _is_mape_due(self, layer: Layer) -> bool:
        """In every eighth example of a layer, the first one among them."""
        return self._records[layer.name].examples % _MAPE_EVERY == 0

    def _follow_scale(self, example: TrainingExample) -> None:
        new = _mean_squares(example.layer, example.squares)
        record = self._records[example.layer.name]
        old = record.mean_squares or new
        record.mean_squares = [0.9 * a + 0.1 * b for a, b in zip(old, new, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Weights, Adam, its learning-rate schedule, and the scales."""
        return {
            "conv": self._conv.state_dict(),
            "last": self._last.clone(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": {"last_epoch": self._scheduler.last_epoch},
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
        self._conv.load_state_dict(state["conv"])
        self._conv.changed()
        self._last.copy_(state["last"])
        groups = [group | {"fused": self._fused} for group in state["optimizer"]["param_groups"]]
        self._optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self._scheduler.last_epoch = state["scheduler"]["last_epoch"]
        self._records = {name: _LayerRecord(**record) for name, record in state["layers"].items()}
        self._turn = state["turn"]


def _mean_squares(layer: Layer, squares: Sequence[float]) -> list[float]:
    counts = (layer.out * layer.fan_in, layer.out)
    return [square / count for square, count in zip(squares, counts, strict=False)]
