"""The default predictor: what was true lately, corrected by the network, as far as it can be trusted."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from adagp.layers import Layer
from adagp.predictor.glance import Glance
from adagp.predictor.interface import Lesson, Seen
from adagp.predictor.network import PaperPredictor
from adagp.quality import Agreement
from adagp.rows import MEAN_DECAY, Rows, RunningRows


class TrustedPredictor:
    """The running mean of a layer's true gradient plus the network's correction, scaled by a measured trust.

    A BP batch that follows GP batches shows what they did: if its gradient still points along the prediction, the
    layer could have gone further; if it points against it, the layer went too far. Trust follows that sign, as a line
    search would, so that it settles where the step along the prediction ends near the minimum of that line.
    """

    def __init__(
        self, network: PaperPredictor | None = None, mean_decay: float = MEAN_DECAY, trust_rate: float = 0.03
    ) -> None:
        """Set what is remembered and how fast trust moves.

        Args:
            network: Learns what the mean misses; defaults to one of the default size that studies 4 layers a batch, in
                turn, and looks at 16 samples of it.
            mean_decay: Weight of the past in the running mean of true gradients.
            trust_rate: How far one BP batch moves a layer's trust, per unit of cosine.
        """
        self._network = network or PaperPredictor(samples=16, layers_per_step=4)
        self._means = RunningRows(mean_decay)
        self._trust_rate = trust_rate
        self._trust: dict[str, float] = {}

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size the network."""
        self._network.attach(layers)

    def studied(self) -> Collection[str]:
        """What the network studies."""
        return self._network.studied()

    def glance(self, layer: Layer, output: Tensor) -> Glance:
        """What the network wants to keep."""
        return self._network.glance(layer, output)

    def see(self, glances: Sequence[tuple[Layer, Glance]]) -> list[Seen]:
        """What the network wants to see."""
        return self._network.see(glances)

    def predict(self, asked: Sequence[tuple[Layer, Seen]]) -> Iterator[Rows | None]:
        """The trusted share of mean and correction; None where there is no trust at all."""
        trusted = [(layer, seen) for layer, seen in asked if self.trust(layer.name) > 0]
        names = [layer.name for layer, _ in trusted]
        rows = self._network.share(
            trusted, [self._means.get(name) for name in names], [self.trust(name) for name in names]
        )
        for layer, _ in asked:
            yield next(rows) if self.trust(layer.name) > 0 else None

    def trust(self, layer: str) -> float:
        """0 to 1; 0 before the first true gradient."""
        return self._trust.get(layer, 0.0)

    def learn(self, lessons: Sequence[Lesson]) -> dict[str, Agreement]:
        """Let the network learn what the mean misses, then move the mean and the trust.

        The agreement of a layer that was not studied in this batch is that of its mean alone.
        """
        known = ((lesson.layer.name, self._means.get(lesson.layer.name)) for lesson in lessons)
        means = {name: rows for name, rows in known if rows is not None}
        found = self._network.fit(lessons, means)
        found |= self._agreements([lesson for lesson in lessons if lesson.seen is None], means)
        self._means.add({lesson.layer.name: lesson.truth for lesson in lessons})
        for name, agreement in found.items():
            self._trust[name] = min(max(self.trust(name) + self._trust_rate * agreement.cosine, 0.0), 1.0)
        return found

    def _agreements(self, lessons: Sequence[Lesson], means: Mapping[str, Rows]) -> dict[str, Agreement]:
        """How the means of these layers agree with the truth; those without one predict nothing."""
        pairs = {
            lesson.layer.name: [
                (mean.flatten(), truth.flatten())
                for mean, truth in zip(
                    self._network.blocks(lesson.layer, means[lesson.layer.name]),
                    self._network.blocks(lesson.layer, lesson.truth),
                    strict=True,
                )
            ]
            for lesson in lessons
            if lesson.layer.name in means
        }
        flat = [pair for blocks in pairs.values() for pair in blocks]
        products = [mean @ truth for mean, truth in flat] + [mean @ mean for mean, _ in flat]
        values = torch.stack(products).tolist() if products else []
        dots, squares = iter(values[: len(flat)]), iter(values[len(flat) :])
        found = {}
        for lesson in lessons:
            blocks = pairs.get(lesson.layer.name, [])
            found[lesson.layer.name] = self._network.agreement(
                lesson, sum(next(dots) for _ in blocks), sum(next(squares) for _ in blocks)
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
