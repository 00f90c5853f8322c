"""Gradients from the predictor."""

from collections.abc import Iterator, Sequence

from adagp.layers import Layer, Rows
from adagp.predictors import Features, Predictor
from adagp.schedules import sources as table
from adagp.sources.source import GradientRequest, Source


class Predicted(Source):
    """Rows from the predictor."""

    spec = table.spec("predicted")

    def __init__(self, predictor: Predictor) -> None:
        """The predictor is shared with the engine, which lets it learn."""
        self._predictor = predictor

    def wants_features(self, layer: str) -> bool:
        """Layers without trust are left out: their prediction would be scaled to zero."""
        return self._predictor.trust(layer) > 0

    def gradients(self, requests: Sequence[GradientRequest]) -> Iterator[Rows | None]:
        """The predictions; None where a layer was not reached or is not trusted at all."""
        asked = [(one.layer, one.features) for one in requests if one.features is not None]
        rows = self._counted(asked)
        return (None if one.features is None else next(rows) for one in requests)

    def _counted(self, asked: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        given = 0
        for rows in self._predictor.predict(asked):
            given += 1
            yield rows
        if given < len(asked):
            name = type(self._predictor).__name__
            raise ValueError(f"{name}.predict gave {given} rows for {len(asked)} layers: give one, or None, for each")
