"""A source and a predictor of your own, each registered in a few lines and used by name.

    python examples/own_source_and_predictor.py

The source, `fading`, supplies the last true gradient, and halves it each time it is used. The predictor, `halved`, is
the paper's network with its output divided by two. Both train the same small network in the GP batches of a schedule
with two GP batches for each BP batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adagp import AdaGP, predictors, schedules, sources
from adagp.layers import Layer, Rows
from adagp.predictors import Features, PaperPredictor
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


@predictors.register("halved")
class Halved(PaperPredictor):
    """Half of what the paper's network predicts."""

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """The network's rows, divided by two."""
        for rows in super().predict(requests):
            yield None if rows is None else halve(rows)


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
    for source, predictor in (("fading", None), ("predicted", "halved")):
        gp, loss = train(source, predictor)
        print(f"source {source!r}, predictor {predictor!r}: {gp.counts()}, last loss {loss:.3f}")
    print(f"known predictors: {', '.join(predictors.names())}")


if __name__ == "__main__":
    main()
