"""The default predictor: what was true lately, corrected by the network, as far as it can be trusted."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from adagp.layers import Layer
from adagp.layers.rows import MEAN_DECAY, Rows, RunningRows
from adagp.predictors.interface import Features, TrainingExample
from adagp.predictors.network import GradientNetwork
from adagp.quality import GradientAlignment


class TrustedPredictor:
    """The running mean of a layer's true gradient plus the network's correction, scaled by a measured trust.

    A BP batch that follows GP batches shows what they did: if its gradient still points along the prediction, the
    layer could have gone further; if it points against it, the layer went too far. Trust follows that sign, as a line
    search would, so that it settles where the step along the prediction ends near the minimum of that line.
    """

    def __init__(
        self, network: GradientNetwork | None = None, mean_decay: float = MEAN_DECAY, trust_rate: float = 0.03
    ) -> None:
        """Set what is remembered and how fast trust moves.

        Args:
            network: Learns what the mean misses. The default learns from 4 layers a batch, in turn, and averages 16
                samples.
            mean_decay: Weight of the past in the running mean of true gradients.
            trust_rate: How far one BP batch moves a layer's trust, per unit of cosine.
        """
        self._network = network or GradientNetwork(samples=16, layers_per_step=4)
        self.needs = self._network.needs
        self._means = RunningRows(mean_decay)
        self._trust_rate = trust_rate
        self._trust: dict[str, float] = {}

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size the network."""
        self._network.attach(layers)
        self._trust = {layer.name: 0.0 for layer in layers}

    def layers_to_train_on(self) -> Collection[str]:
        """The layers the network learns from."""
        return self._network.layers_to_train_on()

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """The trusted share of mean and correction; None where there is no trust at all."""
        trusted = [(layer, features) for layer, features in requests if self.trust(layer.name) > 0]
        names = [layer.name for layer, _ in trusted]
        rows = self._network.predict_scaled(
            trusted, [self._means.get(name) for name in names], [self.trust(name) for name in names]
        )
        for layer, _ in requests:
            yield next(rows) if self.trust(layer.name) > 0 else None

    def trust(self, layer: str) -> float:
        """0 to 1; 0 before the first true gradient."""
        return self._trust.get(layer, 0.0)

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Let the network learn what the mean misses, then move the mean and the trust.

        The alignment of a layer without features in this batch is that of its mean alone.
        """
        known = ((example.layer.name, self._means.get(example.layer.name)) for example in examples)
        means = {name: rows for name, rows in known if rows is not None}
        found = self._network.fit(examples, means)
        found |= self._alignments([example for example in examples if example.features is None], means)
        self._means.add({example.layer.name: example.true_grad for example in examples})
        for name, alignment in found.items():
            self._trust[name] = min(max(self.trust(name) + self._trust_rate * alignment.cosine, 0.0), 1.0)
        return found

    def _alignments(
        self, examples: Sequence[TrainingExample], means: Mapping[str, Rows]
    ) -> dict[str, GradientAlignment]:
        """The alignment of these layers' means with their true gradients; a layer without a mean predicts nothing."""
        pairs = {
            example.layer.name: [
                (mean.flatten(), true_grad.flatten())
                for mean, true_grad in zip(
                    self._network.blocks(example.layer, means[example.layer.name]),
                    self._network.blocks(example.layer, example.true_grad),
                    strict=True,
                )
            ]
            for example in examples
            if example.layer.name in means
        }
        flat = [pair for blocks in pairs.values() for pair in blocks]
        products = [mean @ true_grad for mean, true_grad in flat] + [mean @ mean for mean, _ in flat]
        values = torch.stack(products).tolist() if products else []
        dots, squares = iter(values[: len(flat)]), iter(values[len(flat) :])
        found = {}
        for example in examples:
            blocks = pairs.get(example.layer.name, [])
            found[example.layer.name] = self._network.alignment(
                example, sum(next(dots) for _ in blocks), sum(next(squares) for _ in blocks)
            )
        return found

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
