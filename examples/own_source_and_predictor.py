"""A source and a predictor of your own, each registered in a few lines and used by name.

    python examples/own_source_and_predictor.py

The source, `fading`, supplies the last true gradient, and halves it each time it is used. The predictor,
`backward-map`, sees a layer's input and the gradient of the loss at the model's output, and so the labels. Both train
the same small network in the GP batches of a schedule with two GP batches for each BP batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adagp import AdaGP, predictors, schedules, sources
from adagp.layers import Layer, Rows
from adagp.predictors import Features, FeatureSpec, TrainingExample
from adagp.quality import GradientAlignment
from adagp.schedules import SourceSpec


def halve(rows: Rows) -> Rows:
    """Half of a gradient."""
    return Rows(rows.weight / 2, None if rows.bias is None else rows.bias / 2)


FADING = SourceSpec(
    name="fading",
    about="the last true gradient, halved each time it is used",
    letter="F",
    colour="#0072B2",
    remembers=True,  # so that `learn` is called with every true gradient
)


@sources.register(FADING)
class Fading(sources.Source):
    """Reuses a gradient, and trusts it less the older it is."""

    def __init__(self) -> None:
        """Nothing is known before the first true gradient."""
        self._rows: dict[str, Rows] = {}

    def learn(self, true_grads: Mapping[str, Rows]) -> None:
        """Keep a copy: the optimizer's `zero_grad` may reuse the memory."""
        self._rows.update({name: rows.clone() for name, rows in true_grads.items()})

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """None before the first true gradient: the layer is then left alone."""
        if layer.name not in self._rows:
            return None
        self._rows[layer.name] = halve(self._rows[layer.name])
        return self._rows[layer.name].clone()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue bit for bit, in plain types and tensors."""
        return {name: rows.blocks() for name, rows in self._rows.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._rows = {name: Rows(blocks[0], (blocks[1:] or [None])[0]).clone() for name, blocks in state.items()}


@predictors.register("backward-map")
class BackwardMap:
    """Predicts Linear layers from their input and the gradient of the loss at the model's output.

    The gradient of a Linear layer is the sum over samples of `grad_output` times input. Without a backward pass
    `grad_output` is unknown. This predictor takes it to be a fixed matrix times the gradient at the model's output, and
    learns that matrix for each layer. For the last layer the identity matrix is exact.
    """

    needs = FeatureSpec(loss_grad=True, weighted_input=True)  # nothing else is computed

    def __init__(self, rate: float = 0.5) -> None:
        """`rate` is the share of the error that one example corrects."""
        self._rate = rate
        self._maps: dict[str, Tensor | None] = {}  # None before the first example

    def attach(self, layers: Sequence[Layer]) -> None:
        """Other layer types are left alone."""
        self._maps = {layer.name: None for layer in layers if isinstance(layer.module, nn.Linear)}

    def layers_to_train_on(self) -> Collection[str]:
        """All of them, in every batch with a backward."""
        return self._maps.keys()

    def trust(self, layer: str) -> float:
        """0 before the first example and for other layer types, so that they are left alone; 1 otherwise."""
        return 0.0 if self._maps.get(layer) is None else 1.0

    def _rows(self, layer: Layer, features: Features) -> Rows | None:
        backward = self._maps[layer.name]
        if backward is None:
            return None
        bias = None if layer.bias is None else backward @ features.loss_grad[:, None]
        return Rows(backward @ features.weighted_input, bias)

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """The matrix times the layer's inputs, each weighted by its sample's gradient at the model's output."""
        return (self._rows(layer, features) for layer, features in requests)

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """One normalised step towards each true gradient; returns how good the predictions were before it."""
        found = {}
        for example in examples:
            if example.features is None:
                continue
            layer, seen = example.layer, example.features.weighted_input
            predicted = self._rows(layer, example.features)
            found[layer.name] = example.compare(predicted)
            true = example.true_grad.weight
            error = true if predicted is None else true - predicted.weight
            step = self._rate * error @ seen.t() / seen.square().sum().clamp(min=1e-12)
            old = self._maps[layer.name]
            self._maps[layer.name] = step if old is None else old + step
        return found

    def state_dict(self) -> dict[str, Any]:
        """The matrices learned so far."""
        return {name: backward for name, backward in self._maps.items() if backward is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._maps.update(state)


def train(source: str, predictor: str | None) -> tuple[AdaGP, Tensor | None]:
    """Sixty batches in which the GP batches use `source`; returns the AdaGP and the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    gp = AdaGP(model, optimizer, schedules.fixed(k=2, m=1, source=source), predictor)
    target = nn.Linear(12, 3)
    for _ in range(60):
        x = torch.randn(32, 12)
        y = target(x).argmax(1)
        loss = gp.step(lambda x=x, y=y: nn.functional.cross_entropy(model(x), y))
    return gp, loss


def main() -> None:
    """Train with each, and print what was applied."""
    for source, predictor in (("fading", None), ("predicted", "backward-map")):
        gp, loss = train(source, predictor)
        print(f"source {source!r}, predictor {predictor!r}: {gp.counts()}, last loss {loss:.3f}")
        for name, quality in gp.quality().items():
            print(f"  layer {name!r}: cosine of predicted and true gradient {quality.cosine:.2f}")
    print(f"known predictors: {', '.join(predictors.names())}")


if __name__ == "__main__":
    main()
