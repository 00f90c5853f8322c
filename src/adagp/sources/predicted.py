"""Gradients from the predictor."""

from collections.abc import Collection, Iterator, Sequence

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

    def is_always_finite(self, layer: str) -> bool:
        """Whether the predictor promises finite rows for this layer; what its base promised does not count."""
        if "always_finite" not in vars(type(self._predictor)):
            return False
        promised: Collection[str] = getattr(self._predictor, "always_finite", ())
        return layer in promised

    def wants_features(self, layer: str) -> bool:
        """Layers without trust are left out: their prediction would be scaled to zero."""
        return self._predictor.trust(layer) > 0 and layer not in self._predictor.needs.except_for

    def gradients(self, requests: Sequence[GradientRequest]) -> Iterator[Rows | None]:
        """The predictions; None where a layer was not reached or is not trusted at all."""
        features = [self._features(one) for one in requests]
        asked = [(one.layer, known) for one, known in zip(requests, features, strict=True) if known is not None]
        rows = self._counted(asked)
        return (None if known is None else next(rows) for known in features)

    def _features(self, request: GradientRequest) -> Features | None:
        """What the predictor is given of a layer; None where it is not asked."""
        name = request.layer.name
        if name in self._predictor.needs.except_for:
            return Features() if self._predictor.trust(name) > 0 else None
        return request.features

    def _counted(self, asked: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        given = 0
        for rows in self._predictor.predict(asked):
            given += 1
            yield rows
        if given < len(asked):
            name = type(self._predictor).__name__
            raise ValueError(f"{name}.predict gave {given} rows for {len(asked)} layers: give one, or None, for each")
