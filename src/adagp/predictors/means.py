"""The running means of a model that is too small for a network, and how they align with the next true gradients."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from adagp.layers import Layer
from adagp.layers.rows import Rows, RunningRows
from adagp.predictors.interface import Features, FeatureSpec, SumOverRanks, TrainingExample, no_other_ranks
from adagp.quality import GradientAlignment, mean_absolute_percentage_errors

_MAPE_ROWS = 8
_MAPE_EVERY = 8
_Known = tuple[TrainingExample, Rows]


class MeansAlone:
    """The running mean of every layer's true gradient, all of them moved and applied at once.

    A small model has short batches, in which a few operations for each layer cost more than their arithmetic.
    """

    def __init__(self, decay: float) -> None:
        """`decay` is the weight of the past in each mean."""
        self._means = RunningRows(decay)
        self._mapes: dict[str, float] = {}
        self._total: SumOverRanks = no_other_ranks
        self.needs = FeatureSpec()
        """No features of any layer."""

    def attach(self, layers: Sequence[Layer], total: SumOverRanks) -> None:
        """Get to know the layers; `total` adds up over ranks that hold other rows."""
        self.needs = FeatureSpec(except_for=frozenset(layer.name for layer in layers))
        self._total = total
        self._means.attach(layers)

    def layers_to_train_on(self) -> Collection[str]:
        """Nothing learns from features."""
        return ()

    def get(self, layer: str) -> Rows | None:
        """The mean itself, not a copy; None before the first true gradient."""
        return self._means.get(layer)

    def scaled(self, requests: Sequence[tuple[Layer, Features]], factors: Sequence[float]) -> list[Rows | None]:
        """`factor x mean` of each layer; None before its first true gradient."""
        means = [self._means.get(layer.name) for layer, _ in requests]
        pairs = [
            (block, factor)
            for mean, factor in zip(means, factors, strict=True)
            if mean is not None
            for block in mean.blocks()
        ]
        if not pairs:
            return [None for _ in means]
        scaled = iter(torch._foreach_mul([block for block, _ in pairs], [factor for _, factor in pairs]))
        return [
            None if mean is None else Rows(next(scaled), None if mean.bias is None else next(scaled)) for mean in means
        ]

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Move the means. Returns how they aligned with the true gradients before that."""
        means = ((example, self._means.get(example.layer.name)) for example in examples)
        known = [(example, mean) for example, mean in means if mean is not None]
        products = self._products(known) if known else {}
        found = {example.layer.name: self._alignment(example, products) for example in examples}
        self._means.add({example.layer.name: example.true_grad for example in examples})
        return found

    def _products(self, known: Sequence[_Known]) -> dict[str, tuple[float, float]]:
        """`<mean, true gradient>` and `|mean|^2` of each layer, over all ranks; MAPE is measured where it is due."""
        blocks = [block.flatten() for _, mean in known for block in mean.blocks()]
        true = [block.flatten() for example, _ in known for block in example.true_grad.blocks()]
        due = [(example, mean) for example, mean in known if self._means.count(example.layer.name) % _MAPE_EVERY == 1]
        dots = torch.stack([one.dot(other) for one, other in zip(blocks, true, strict=True)])
        squares = torch.stack(torch._foreach_norm(blocks)).square_()
        dot, square, *mapes = (iter(total.tolist()) for total in self._total([dots, squares, *_mapes(due)]))
        self._mapes.update((example.layer.name, next(mapes[0])) for example, _ in due)
        counts = ((example.layer.name, len(mean.blocks())) for example, mean in known)
        return {name: (sum(islice(dot, count)), sum(islice(square, count))) for name, count in counts}

    def _alignment(self, example: TrainingExample, products: Mapping[str, tuple[float, float]]) -> GradientAlignment:
        layer = example.layer
        dot, square = products.get(layer.name, (0.0, 0.0))
        return GradientAlignment(
            dot,
            square,
            true_square=sum(example.squares),
            count=layer.out * (layer.fan_in + len(example.squares) - 1),
            mape=self._mapes.get(layer.name, 1.0),
        )

    def state_dict(self) -> dict[str, Any]:
        """The means and the last MAPE of each layer."""
        return {"network": None, "means": self._means.state_dict(), "mapes": dict(self._mapes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        if state["network"] is not None:
            raise ValueError(
                "the saved predictor has a network, and this one does without: build it with the same fewest_weights, "
                "or with a network where it had one"
            )
        self._means.load_state_dict(state["means"])
        self._mapes = dict(state["mapes"])


def _mapes(due: Sequence[_Known]) -> list[Tensor]:
    """MAPE of the weights of these layers on a few rows, one number each: a running figure needs no more.

    A rank that holds some of these rows measures those, and its share of them weighs the result.
    """
    if not due:
        return []
    shares, predicted, true = [], [], []
    for example, mean in due:
        layer = example.layer
        rows = slice(None, None, -(-layer.out // _MAPE_ROWS))
        pick = layer.own_part(rows)
        shares.append(len(mean.weight[pick]) / len(range(layer.out)[rows]))
        predicted.append(mean.weight[pick].flatten())
        true.append(example.true_grad.weight[pick].flatten())
    found = mean_absolute_percentage_errors(predicted, true)
    return [predicted[0].new_tensor([share * mape for share, mape in zip(shares, found, strict=True)])]
