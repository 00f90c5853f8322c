"""The default predictor: what was true lately, corrected by the network, as far as it can be trusted."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adagp.layers import Layer
from adagp.layers.rows import MEAN_DECAY, Rows, RunningRows
from adagp.predictors.interface import Features, SumOverRanks, TrainingExample
from adagp.predictors.network import GradientNetwork
from adagp.quality import GradientAlignment, mean_absolute_percentage_errors

MOST_ROWS = 4096
"""Rows from which a layer counts as large. A correction costs `features x weights` multiply-adds, which only many
positions for each weight repay; a head over a vocabulary has few."""
_MAPE_ROWS = 8


class TrustedPredictor:
    """The running mean of a layer's true gradient plus the network's correction, scaled by a measured trust.

    A BP batch that follows GP batches shows what they did: if its gradient still points along the prediction, the
    layer could have gone further; if it points against it, the layer went too far. Trust follows that sign, as a line
    search would, so that it settles where the step along the prediction ends near the minimum of that line.

    A large layer, such as a head over a vocabulary, is predicted by its mean alone. Its mean and trust follow a part
    of its rows in each batch, and the parts take turns: a pass over all of them would cost as much as an optimizer's.
    """

    def __init__(
        self,
        network: GradientNetwork | None = None,
        mean_decay: float = MEAN_DECAY,
        trust_rate: float = 0.03,
        most_rows: int = MOST_ROWS,
    ) -> None:
        """Set what is remembered and how fast trust moves.

        Args:
            network: Learns what the mean misses. The default learns from a quarter of the layers a batch, at most 4, in
                turn, and averages 16 samples.
            mean_decay: Weight of the past in the running mean of true gradients.
            trust_rate: How far one BP batch moves a layer's trust, per unit of cosine.
            most_rows: A layer with more rows is large.
        """
        if most_rows < 1:
            raise ValueError(f"most_rows = {most_rows}: must be at least 1")
        self._network = network or GradientNetwork(samples=16, layers_per_step=4, steps_per_round=4)
        self.needs = self._network.needs
        self._means = RunningRows(mean_decay, most_rows)
        self._most_rows = most_rows
        self._trust_rate = trust_rate
        self._trust: dict[str, float] = {}

    def share_rows(self, total: SumOverRanks) -> None:
        """Learn together with ranks that hold other rows: network and trust are the same on all of them."""
        self._network.share_rows(total)

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size the network for the layers that it corrects."""
        large = frozenset(layer.name for layer in layers if layer.out > self._most_rows)
        self.needs = replace(self._network.needs, except_for=large)
        self._network.attach([layer for layer in layers if layer.name not in large])
        self._means.attach(layers)
        self._trust = {layer.name: 0.0 for layer in layers}

    def layers_to_train_on(self) -> Collection[str]:
        """The layers the network learns from."""
        return self._network.layers_to_train_on()

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """The trusted share of mean and correction; None where there is no trust at all."""
        trusted = [(layer, features) for layer, features in requests if self.trust(layer.name) > 0]
        corrected = [(layer, features) for layer, features in trusted if not self._is_large(layer)]
        names = [layer.name for layer, _ in corrected]
        rows = self._network.predict_scaled(
            corrected, [self._means.get(name) for name in names], [self.trust(name) for name in names]
        )
        for layer, _ in requests:
            if self.trust(layer.name) == 0:
                yield None
            else:
                yield self._trusted_mean(layer) if self._is_large(layer) else next(rows)

    def _is_large(self, layer: Layer) -> bool:
        return layer.name in self.needs.except_for

    def _trusted_mean(self, layer: Layer) -> Rows | None:
        mean = self._means.get(layer.name)
        if mean is None:
            return None
        weight, *bias = (block * self.trust(layer.name) for block in self._network.blocks(layer, mean))
        return Rows(weight, bias[0] if bias else None)

    def trust(self, layer: str) -> float:
        """0 to 1; 0 before the first true gradient."""
        return self._trust.get(layer, 0.0)

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Let the network learn what the mean misses, then move the mean and the trust.

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
        for name, alignment in found.items():
            self._trust[name] = min(max(self.trust(name) + self._trust_rate * alignment.cosine, 0.0), 1.0)
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
        """The network, the means and the trust."""
        return {
            "network": self._network.state_dict(),
            "means": self._means.state_dict(),
            "trust": dict(self._trust),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._network.load_state_dict(state["network"])
        self._means.load_state_dict(state["means"])
        self._trust = dict(state["trust"])


def _sums_of(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The inner product of each mean with its true gradient, then the sum of squares of each mean."""
    if not pairs:
        return torch.empty(0)
    dots = torch.stack([mean @ true_grad for mean, true_grad in pairs])
    return torch.cat([dots, torch.stack(torch._foreach_norm([mean for mean, _ in pairs])).square_()])
