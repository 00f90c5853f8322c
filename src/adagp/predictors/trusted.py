"""The default predictor: what was true lately, corrected by the network, as far as it can be trusted."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from adagp.layers import Layer
from adagp.layers.rows import MEAN_DECAY, Rows
from adagp.predictors.corrected import CorrectedMeans
from adagp.predictors.interface import Features, SumOverRanks, TrainingExample, no_other_ranks
from adagp.predictors.means import MeansAlone
from adagp.predictors.network import GradientNetwork
from adagp.quality import GradientAlignment

logger = logging.getLogger("adagp")

MOST_ROWS = 4096
"""Rows from which a layer counts as large. A correction costs `features x weights` multiply-adds, which only many
positions for each weight repay; a head over a vocabulary has few."""
FEWEST_WEIGHTS = 100_000
"""Weights of all covered layers below which a model does without the network: its batches are short, and the network
costs by the number of its operations."""


class TrustedPredictor:
    """The running mean of a layer's true gradient plus the network's correction, scaled by a measured trust.

    A BP batch that follows GP batches shows what they did: if its gradient still points along the prediction, the
    layer could have gone further; if it points against it, the layer went too far. Trust follows that sign, as a line
    search would, so that it settles where the step along the prediction ends near the minimum of that line.

    A large layer, such as a head over a vocabulary, is predicted by its mean alone, and so are all layers of a small
    model. There the network is left out.
    """

    def __init__(
        self,
        network: GradientNetwork | None = None,
        mean_decay: float = MEAN_DECAY,
        trust_rate: float = 0.03,
        most_rows: int = MOST_ROWS,
        fewest_weights: int = FEWEST_WEIGHTS,
    ) -> None:
        """Set what is remembered and how fast trust moves.

        Args:
            network: Learns what the mean misses, in a model of any size. The default learns from a quarter of the
                layers a batch, at most 4, in turn, and averages 16 samples; a small model does without it.
            mean_decay: Weight of the past in the running mean of true gradients.
            trust_rate: How far one BP batch moves a layer's trust, per unit of cosine.
            most_rows: A layer with more rows is large.
            fewest_weights: A model is small if its covered layers have fewer weights. Not asked where `network` is
                given.
        """
        if most_rows < 1:
            raise ValueError(f"most_rows = {most_rows}: must be at least 1")
        if fewest_weights < 0:
            raise ValueError(f"fewest_weights = {fewest_weights}: must be at least 0")
        self._mean_decay, self._trust_rate = mean_decay, trust_rate
        self._fewest_weights = fewest_weights if network is None else 0
        known = network or GradientNetwork(samples=16, layers_per_step=4, steps_per_round=4)
        self._means: CorrectedMeans | MeansAlone = CorrectedMeans(known, mean_decay, most_rows)
        self.needs = self._means.needs
        self._total: SumOverRanks = no_other_ranks
        self._trust: dict[str, float] = {}
        self.note = ""
        """What is left out of the model it is attached to, and why."""

    @property
    def always_finite(self) -> Collection[str]:
        """The layers that are predicted by their means alone: those of finite gradients are finite."""
        return self.needs.except_for

    def share_rows(self, total: SumOverRanks) -> None:
        """Learn together with ranks that hold other rows: network and trust are the same on all of them."""
        self._total = total

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size the network for the layers that it corrects, if any."""
        weights = sum(layer.out * layer.fan_in for layer in layers)
        if weights < self._fewest_weights:
            self._means = MeansAlone(self._mean_decay)
            self.note = (
                f"predicted by running means alone: the covered layers have {weights:,} weights, fewer than "
                f"{self._fewest_weights:,}, and in short batches the predictor's network costs more than it gives "
                "(TrustedPredictor(fewest_weights=0) keeps it)"
            )
            logger.info("%s", self.note)
        self._means.attach(layers, self._total)
        self.needs = self._means.needs
        self._trust = {layer.name: 0.0 for layer in layers}

    def layers_to_train_on(self) -> Collection[str]:
        """The layers the network learns from."""
        return self._means.layers_to_train_on()

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """The trusted share of mean and correction; None where there is no trust at all."""
        trusts = [self.trust(layer.name) for layer, _ in requests]
        trusted = [request for request, trust in zip(requests, trusts, strict=True) if trust > 0]
        rows = iter(self._means.scaled(trusted, [trust for trust in trusts if trust > 0]))
        return (next(rows) if trust > 0 else None for trust in trusts)

    def trust(self, layer: str) -> float:
        """0 to 1; 0 before the first true gradient."""
        return self._trust.get(layer, 0.0)

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Learn what the mean misses, then move the mean and the trust."""
        found = self._means.learn(examples)
        for name, alignment in found.items():
            self._trust[name] = min(max(self.trust(name) + self._trust_rate * alignment.cosine, 0.0), 1.0)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The network, the means and the trust."""
        return {**self._means.state_dict(), "trust": dict(self._trust)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._means.load_state_dict(state)
        self._trust = dict(state["trust"])
