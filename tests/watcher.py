"""A predictor that only watches, to see what the engine shows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from adagp.layers import Layer, Rows
from adagp.predictors import Features, FeatureSpec, TrainingExample
from adagp.quality import GradientAlignment


class Watcher:
    """A predictor that keeps what it is given, and predicts nothing."""

    def __init__(self, needs: FeatureSpec) -> None:
        self.needs = needs
        self.seen: list[dict[str, Features]] = []

    def attach(self, layers: Sequence[Layer]) -> None:
        self._names = [layer.name for layer in layers]

    def layers_to_train_on(self) -> Collection[str]:
        return self._names

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        self.seen.append({layer.name: features for layer, features in requests})
        return iter([None] * len(requests))

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        self.seen.append({one.layer.name: one.features for one in examples if one.features is not None})
        return {}

    def trust(self, layer: str) -> float:
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
