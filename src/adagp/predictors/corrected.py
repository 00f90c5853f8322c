"""The running mean of each layer's true gradient, corrected by the network."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adagp.layers import Layer
from adagp.layers.rows import Rows, RunningRows
from adagp.predictors.interface import Features, SumOverRanks, TrainingExample
from adagp.predictors.network import GradientNetwork
from adagp.quality import GradientAlignment, mean_absolute_percentage_errors

_MAPE_ROWS = 8


class CorrectedMeans:
    """The means of all layers, and the network that learns what they miss.

    A large layer, such as a head over a vocabulary, has no correction. Its mean follows a part of its rows in each
    batch, and the parts take turns: a pass over all of them would cost as much as an optimizer's.
    """

    def __init__(self, network: GradientNetwork, decay: float, most_rows: int) -> None:
        """Nothing is known yet.

        Args:
            network: Learns what the means miss.
            decay: The weight of the past in each mean.
            most_rows: A layer with more rows is large.
        """
        self._network, self._most_rows = network, most_rows
        self._means = RunningRows(decay, most_rows)
        self.needs = network.needs
        """The features of the layers that are corrected."""

    def attach(self, layers: Sequence[Layer], total: SumOverRanks) -> None:
        """Size the network for the layers that it corrects; `total` adds up over ranks that hold other rows."""
        large = frozenset(layer.name for layer in layers if layer.out > self._most_rows)
        self.needs = replace(self._network.needs, except_for=large)
        self._network.share_rows(total)
        self._network.attach([layer for layer in layers if layer.name not in large])
        self._means.attach(layers)

    def layers_to_train_on(self) -> Collection[str]:
        """The layers the network learns from."""
        return self._network.layers_to_train_on()

    def get(self, layer: str) -> Rows | None:
        """The mean itself, not a copy; None before the first true gradient."""
        return self._means.get(layer)

    def scaled(self, requests: Sequence[tuple[Layer, Features]], factors: Sequence[float]) -> Iterator[Rows | None]:
        """`factor x (mean + correction)` of each layer, or of its mean alone; None before its first true gradient."""
        asked = list(zip(requests, factors, strict=True))
        corrected = [(request, factor) for request, factor in asked if not self._is_large(request[0])]
        rows = self._network.predict_scaled(
            [request for request, _ in corrected],
            [self._means.get(layer.name) for (layer, _), _ in corrected],
            [factor for _, factor in corrected],
        )
        for (layer, _), factor in asked:
            yield self._scaled_mean(layer, factor) if self._is_large(layer) else next(rows)

    def _is_large(self, layer: Layer) -> bool:
        return layer.name in self.needs.except_for

    def _scaled_mean(self, layer: Layer, factor: float) -> Rows | None:
        mean = self._means.get(layer.name)
        if mean is None:
            return None
        weight, *bias = (block * factor for block in self._network.blocks(layer, mean))
        return Rows(weight, bias[0] if bias else None)

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Let the network learn what the means miss, then move the means.

        The alignment of a layer without features in this batch is that of its mean alone.
        """
        known = ((example.layer.name, self._means.get(example.layer.name)) for example in examples)
        means = {name: rows for name, rows in known if rows is not None}
        large = [example for example in examples if self._is_large(example.layer)]
        corrected = [example for example in examples if not self._is_large(example.layer)]
        others = [example for example in corrected if example.features is None]
        pairs = [self._pairs(example, means.get(example.layer.name)) for example in others]
        sums = [_sums_of([pair for own in pairs for pair in own]), *(self._sums_of_part(example) for example in large)]
        found, totals = self._network.fit(corrected, means, [part for part in sums if len(part)])
        values = iter([value for total in totals for value in total.tolist()])
        dots, squares = ([[next(values) for _ in own] for own in pairs] for _ in range(2))
        for example, dot, square in zip(others, dots, squares, strict=True):
            found[example.layer.name] = self._network.alignment(example, sum(dot), sum(square))
        for example in large:
            found[example.layer.name] = self._alignment_of_part(example, values)
        self._means.add({example.layer.name: example.true_grad for example in examples})
        return found

    def _pairs(self, example: TrainingExample, mean: Rows | None) -> list[tuple[Tensor, Tensor]]:
        """A layer's mean and its true gradient, block by block; a layer without a mean predicts nothing."""
        if mean is None:
            return []
        blocks = zip(
            self._network.blocks(example.layer, mean),
            self._network.blocks(example.layer, example.true_grad),
            strict=True,
        )
        return [(mean.flatten(), true_grad.flatten()) for mean, true_grad in blocks]

    def _part(self, layer: Layer) -> slice:
        """The rows of a large layer that move next."""
        return self._means.part_due(layer.name, layer.out)

    def _sums_of_part(self, example: TrainingExample) -> Tensor:
        """For each block of the part that moves next: both inner products and `|true gradient|^2`; then the MAPE."""
        layer, due = example.layer, self._part(example.layer)
        true = example.true_grad.part(layer.own_part(due))
        mean = self._means.get(layer.name)
        guess = true.zeros() if mean is None else mean.part(layer.own_part(due))
        pairs = [
            (one.flatten(), other.flatten())
            for one, other in zip(self._network.blocks(layer, guess), self._network.blocks(layer, true), strict=True)
        ]
        products = [product for one, other in pairs for product in (one @ other, one @ one, other @ other)]
        few = slice(None, None, -(-len(true.weight) // _MAPE_ROWS) or 1)
        (mape,) = mean_absolute_percentage_errors([guess.weight[few].flatten()], [true.weight[few].flatten()])
        share = len(true.weight) / (due.stop - due.start)
        return torch.stack([*products, products[0].new_tensor(share * mape)])

    def _alignment_of_part(self, example: TrainingExample, values: Iterator[float]) -> GradientAlignment:
        """The alignment of a large layer's mean in the part that moves next, as if all its rows were like these."""
        layer, due = example.layer, self._part(example.layer)
        blocks = len(self._network.blocks(layer, example.true_grad))
        products = [next(values) for _ in range(3 * blocks)]
        factor = layer.out / (due.stop - due.start)
        return GradientAlignment(
            dot=factor * sum(products[::3]),
            predicted_square=factor * sum(products[1::3]),
            true_square=factor * sum(products[2::3]),
            count=layer.out * (layer.fan_in + blocks - 1),
            mape=next(values),
        )

    def state_dict(self) -> dict[str, Any]:
        """The network and the means."""
        return {"network": self._network.state_dict(), "means": self._means.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        if state["network"] is None:
            raise ValueError(
                "the saved predictor has no network, and this one has: build it with the same fewest_weights, and "
                "without a network of your own where it had none"
            )
        self._network.load_state_dict(state["network"])
        self._means.load_state_dict(state["means"])


def _sums_of(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The inner product of each mean with its true gradient, then the sum of squares of each mean."""
    if not pairs:
        return torch.empty(0)
    dots = torch.stack([mean @ true_grad for mean, true_grad in pairs])
    return torch.cat([dots, torch.stack(torch._foreach_norm([mean for mean, _ in pairs])).square_()])
