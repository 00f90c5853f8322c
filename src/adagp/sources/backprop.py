"""The exact gradient."""

from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.sources.registry import supplies
from adagp.sources.source import Source


@supplies("backprop")
class Backprop(Source):
    """The true gradient: autograd writes it."""

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """What backward left in `.grad`."""
        return layer.gradient()
