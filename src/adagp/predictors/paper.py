"""The paper's predictor: the network, and nothing else."""

from collections.abc import Iterator, Sequence

from adagp.layers import Layer
from adagp.layers.rows import Rows
from adagp.predictors.interface import Features, TrainingExample
from adagp.predictors.network import GradientNetwork
from adagp.quality import GradientAlignment


class PaperPredictor(GradientNetwork):
    """Applies what the network predicts (ADA-GP, section 3.6)."""

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """The network's rows, unscaled."""
        return self.predict_scaled(requests, [None] * len(requests), [1.0] * len(requests))

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Learn the true gradient itself."""
        return self.fit(examples, {})[0]

    def trust(self, layer: str) -> float:
        """Always 1: the paper's predictor does not doubt itself."""
        return 1.0
