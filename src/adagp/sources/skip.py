"""No gradient."""

from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.sources.registry import supplies
from adagp.sources.source import Source


@supplies("skip")
class Skip(Source):
    """None: the optimizer leaves the layer alone."""

    always_finite = True

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """Nothing."""
        return None
