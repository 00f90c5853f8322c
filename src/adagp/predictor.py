"""The predictor: one small network for all layers, and how it learns.

The network pools a layer's reorganised output to a grid, passes it through a small convolution, and maps the result
with one fully connected layer to a row of the weight gradient. That layer is sized by the largest `fan_in`; smaller
layers use its first units (ADA-GP, section 3.6).

Because the last layer is linear, a prediction `P = F W'` (features `F`, weights `W`) need not be written out to learn
from a true gradient `T`: the loss, its gradient and every inner product follow from `T W`, `T' F` and small squares
of `F` and `W`. Learning so reads `T` a few times and never builds anything of its size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adagp.layers import Layer
from adagp.quality import Agreement, mean_absolute_percentage_errors
from adagp.rows import MEAN_DECAY, Rows, RunningRows

_MAPE_ROWS = 8
_MAPE_EVERY = 8


@dataclass(frozen=True)
class Seen:
    """What a layer saw in one batch, reduced inside the forward hook so that no activation is kept alive.

    Predictors that want more of a layer (its input, the loss's gradient at the model's output) add a field here.
    """

    output: Tensor
    """The reorganised output as the predictor pools it, `(out, features)`."""

    @staticmethod
    def mean(parts: Sequence["Seen"]) -> "Seen":
        """Several calls of one layer in a batch (a reused weight, accumulated micro-batches) seen as one."""
        return parts[0] if len(parts) == 1 else Seen(torch.stack([part.output for part in parts]).mean(0))


@dataclass(frozen=True)
class Lesson:
    """One layer with what it saw, its true gradient, and the sum of squares of each of the gradient's blocks."""

    layer: Layer
    seen: Seen
    truth: Rows
    squares: tuple[float, ...]


class Predictor(Protocol):
    """What the engine asks of a predictor."""

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size everything for these layers; called once, before anything else."""

    def see(self, layer: Layer, output: Tensor) -> Seen:
        """Reduce a layer's output to what prediction needs; called inside the forward hook."""

    def predict(self, layer: Layer, seen: Seen) -> Rows | None:
        """Rows for this layer; None where the prediction is not worth applying."""

    def learn(self, lessons: Sequence[Lesson]) -> dict[str, Agreement]:
        """Learn from true gradients; returns how the predictions made before learning agreed with them."""

    def trust(self, layer: str) -> float:
        """The factor, 0 to 1, already inside what `predict` returns."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on after a restart, in plain types and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""


@dataclass(frozen=True)
class _LessonWork:
    """What one lesson adds to a learning step: inner products are fetched from the device for all lessons at once."""

    grad_features: Tensor
    products: list[Tensor]
    scales: list[float]
    has_base: bool

    def agree(self, products: Iterator[float]) -> tuple[float, float]:
        """`<base + prediction, truth>` and `|base + prediction|^2` from this lesson's next products."""
        dot = square = 0.0
        for scale in self.scales:
            dot += scale * next(products)
            square += scale * scale * next(products)
            if self.has_base:
                cross, base_truth, base_square = scale * next(products), next(products), next(products)
                dot += cross + base_truth
                square += 2 * cross + base_square
        return dot, square


class PaperPredictor:
    """The paper's predictor: one small network shared by all layers, and nothing else.

    Its output starts at zero and its targets are divided by the running root mean square of the layer's true gradient,
    so that an untrained network changes nothing. `literal=True` is the recipe as printed: random output weights, raw
    inputs and targets.
    """

    def __init__(
        self,
        *,
        grid: int = 4,
        channels: int = 1,
        lr: float = 1e-4,
        milestones: Sequence[int] = (10_000, 15_000),
        gamma: float = 0.1,
        predict_bias: bool = True,
        layers_per_step: int | None = None,
        samples: int | None = None,
        literal: bool = False,
        seed: int = 0,
    ) -> None:
        """Set the network's size and how it learns.

        Args:
            grid: Outputs are pooled to `grid x grid`.
            channels: Channels of the convolution; the last layer has `grid x grid x channels` inputs and a constant.
            lr: Learning rate of the network's Adam.
            milestones: Learning steps at which MultiStepLR multiplies the rate by `gamma`; the paper gives none.
            gamma: See `milestones`.
            predict_bias: Give biases one extra output; otherwise their gradient is None in GP.
            layers_per_step: Learn from this many layers a step, in turn, instead of all.
            samples: See the mean over at most this many samples of a batch, evenly spread, instead of all.
            literal: The printed recipe; its first predictions may be many times larger than true gradients.
            seed: Of the initial weights; the global generator is left alone.
        """
        if layers_per_step is not None and layers_per_step < 1:
            raise ValueError("layers_per_step: must be at least 1, or None for all layers")
        if samples is not None and samples < 1:
            raise ValueError("samples: must be at least 1, or None for the whole batch")
        self._grid, self._channels, self._lr = grid, channels, lr
        self._milestones, self._gamma = list(milestones), gamma
        self._predict_bias, self._layers_per_step = predict_bias, layers_per_step
        self._samples = samples
        self._literal, self._seed = literal, seed
        self._turn = 0
        self._mean_squares: dict[str, list[float]] = {}
        self._mapes: dict[str, float] = {}
        self._lessons: dict[str, int] = {}

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size the last layer by the largest `fan_in`, with unit 0 for biases."""
        device = layers[0].weight.device
        features = self._grid * self._grid * self._channels
        units = 1 + max(layer.fan_in for layer in layers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self._conv = nn.Conv2d(1, self._channels, 3, padding=1).to(device)
            last = nn.Linear(features, units)
        weights = torch.cat([last.weight.detach(), last.bias.detach()[:, None]], dim=1)  # the constant is an input too
        self._last = nn.Parameter((weights if self._literal else torch.zeros_like(weights)).to(device))
        self._optimizer = torch.optim.Adam([*self._conv.parameters(), self._last], lr=self._lr)
        self._scheduler = torch.optim.lr_scheduler.MultiStepLR(self._optimizer, self._milestones, self._gamma)

    def see(self, layer: Layer, output: Tensor) -> Seen:
        """Pool the reorganised output to the grid, at unit scale, in which layers differ widely."""
        reorganised = layer.reorganise(output.detach(), self._samples).float()
        pooled = nn.functional.adaptive_avg_pool2d(reorganised, self._grid).flatten(1)
        return Seen(pooled if self._literal else pooled / pooled.square().mean().sqrt().clamp(min=1e-12))

    def _features(self, pooled: Tensor) -> Tensor:
        """`(rows, grid x grid)` to `(rows, features + 1)`, the last being the constant 1."""
        hidden = torch.relu(self._conv(pooled.reshape(-1, 1, self._grid, self._grid))).flatten(1)
        return torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)

    def blocks(self, layer: Layer, rows: Rows) -> list[Tensor]:
        """The parts of a gradient that the network predicts: the weight's rows and, if wanted, the bias's."""
        return rows.blocks() if self._has_bias(layer) else [rows.weight]

    def _has_bias(self, layer: Layer) -> bool:
        return self._predict_bias and layer.bias is not None

    def _units(self, layer: Layer) -> list[slice]:
        """Which units of the last layer predict each block."""
        weight = slice(1, 1 + layer.fan_in)
        return [weight, slice(0, 1)] if self._has_bias(layer) else [weight]

    def _scales(self, layer: Layer, squares: Sequence[float] = ()) -> list[float]:
        """The running root mean square of each block's true gradient; `squares` stand in before the first."""
        if self._literal:
            return [1.0, 1.0]
        known = self._mean_squares.get(layer.name, _mean_squares(layer, squares) or [0.0, 0.0])
        return [value**0.5 for value in known]

    @torch.no_grad()
    def predict(self, layer: Layer, seen: Seen, base: Rows | None = None, factor: float = 1.0) -> Rows:
        """`factor x (base + prediction)`; without a base, the prediction alone."""
        return self._rows(layer, self._features(seen.output), base, factor)

    def _rows(self, layer: Layer, features: Tensor, base: Rows | None, factor: float = 1.0) -> Rows:
        bases = [None, None] if base is None else self.blocks(layer, base)
        predicted: list[Tensor] = []
        for units, scale, start in zip(self._units(layer), self._scales(layer), bases, strict=False):
            scaled, weights = features * (scale * factor), self._last.detach()[units].t()
            predicted.append(scaled @ weights if start is None else torch.addmm(start, scaled, weights, beta=factor))
        return Rows(predicted[0], predicted[1] if len(predicted) > 1 else None)

    def choose(self, lessons: Sequence[Lesson]) -> list[Lesson]:
        """The lessons of this step: all, or the next few in turn."""
        if self._layers_per_step is None or self._layers_per_step >= len(lessons):
            return list(lessons)
        picked = [lessons[(self._turn + i) % len(lessons)] for i in range(self._layers_per_step)]
        self._turn += self._layers_per_step
        return picked

    def fit(self, lessons: Sequence[Lesson], bases: Mapping[str, Rows]) -> dict[str, Agreement]:
        """One Adam step towards `truth - base` of every lesson, on the mean squared error of scaled rows.

        Returns the agreement of `base + prediction`, as it was before the step, with the truth.
        """
        grad_last = torch.zeros_like(self._last)
        features = self._features(torch.cat([lesson.seen.output for lesson in lessons]))
        parts = torch.split(features.detach(), [lesson.layer.out for lesson in lessons])
        works = [
            self._work(lesson, part, bases.get(lesson.layer.name), grad_last, 2 / len(lessons))
            for lesson, part in zip(lessons, parts, strict=True)
        ]
        self._refresh_mapes(lessons, parts, bases)
        self._optimizer.zero_grad()
        self._last.grad = grad_last
        features.backward(torch.cat([work.grad_features for work in works]))
        self._optimizer.step()
        self._scheduler.step()
        products = iter(torch.stack([product for work in works for product in work.products]).tolist())
        found = {}
        for lesson, work in zip(lessons, works, strict=True):
            dot, square = work.agree(products)
            true_square = sum(lesson.squares[: len(work.scales)])
            count = lesson.layer.out * (lesson.layer.fan_in + self._has_bias(lesson.layer))
            found[lesson.layer.name] = Agreement(dot, square, true_square, count, self._mapes[lesson.layer.name])
            self._follow_scale(lesson)
        return found

    def _work(
        self, lesson: Lesson, features: Tensor, base: Rows | None, grad_last: Tensor, weight: float
    ) -> "_LessonWork":
        """The gradient of one lesson's loss, added to `grad_last`, and the inner products that tell its agreement."""
        truths = self.blocks(lesson.layer, lesson.truth)
        starts = [None] * len(truths) if base is None else self.blocks(lesson.layer, base)
        scales = self._scales(lesson.layer, lesson.squares)[: len(truths)]
        gram = features.t() @ features
        grad_features = torch.zeros_like(features)
        flat_features, flat_gram = features.flatten(), gram.flatten()
        products: list[Tensor] = []
        for truth, start, units, scale in zip(truths, starts, self._units(lesson.layer), scales, strict=True):
            weights = self._last.detach()[units]
            weights_gram = weights.t() @ weights
            target = truth if start is None else truth - start
            projected = target @ weights  # (out, features)
            share, divisor = weight / truth.numel(), max(scale, 1e-30)
            grad_last[units].addmm_(weights, gram, alpha=share).addmm_(target.t(), features, alpha=-share / divisor)
            grad_features.addmm_(features, weights_gram, alpha=share).add_(projected, alpha=-share / divisor)
            products += [flat_features @ projected.flatten(), flat_gram @ weights_gram.flatten()]
            if start is not None:
                flat_start = start.flatten()
                products += [
                    flat_features @ (start @ weights).flatten(),
                    flat_start @ truth.flatten(),
                    flat_start @ flat_start,
                ]
        return _LessonWork(grad_features, products, scales, base is not None)

    def _refresh_mapes(self, lessons: Sequence[Lesson], parts: Sequence[Tensor], bases: Mapping[str, Rows]) -> None:
        """MAPE of each weight, on a few rows in every eighth lesson: it alone needs predictions written out."""
        names, predicted, true = [], [], []
        for lesson, features in zip(lessons, parts, strict=True):
            name, layer = lesson.layer.name, lesson.layer
            self._lessons[name] = self._lessons.get(name, 0) + 1
            if (self._lessons[name] - 1) % _MAPE_EVERY:
                continue
            pick = slice(None, None, -(-layer.out // _MAPE_ROWS))
            base = bases.get(name)
            sample = None if base is None else Rows(base.weight[pick], None)
            names.append(name)
            predicted.append(self._rows(layer, features[pick], sample).weight.flatten())
            true.append(lesson.truth.weight[pick].flatten())
        if names:
            self._mapes.update(zip(names, mean_absolute_percentage_errors(predicted, true), strict=True))

    def _follow_scale(self, lesson: Lesson) -> None:
        new = _mean_squares(lesson.layer, lesson.squares)
        old = self._mean_squares.get(lesson.layer.name, new)
        self._mean_squares[lesson.layer.name] = [0.9 * a + 0.1 * b for a, b in zip(old, new, strict=True)]

    def trust(self, layer: str) -> float:
        """The network has no opinion of itself: always 1."""
        return 1.0

    def learn(self, lessons: Sequence[Lesson]) -> dict[str, Agreement]:
        """Learn the true gradient itself."""
        return self.fit(self.choose(lessons), {})

    def state_dict(self) -> dict[str, Any]:
        """Weights, Adam, its learning-rate schedule, and the scales."""
        return {
            "conv": self._conv.state_dict(),
            "last": self._last.detach().clone(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": {"last_epoch": self._scheduler.last_epoch},
            "mean_squares": {name: list(values) for name, values in self._mean_squares.items()},
            "mapes": dict(self._mapes),
            "lessons": dict(self._lessons),
            "options": self._options(),
            "turn": self._turn,
        }

    def _options(self) -> dict[str, int]:
        """What a saved predictor's weights can only be used with."""
        return {
            "grid": self._grid,
            "channels": self._channels,
            "predict_bias": self._predict_bias,
            "literal": self._literal,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        for option, here in self._options().items():
            if state["options"][option] != here:
                raise ValueError(
                    f"the saved predictor has {option}={state['options'][option]}, this one {option}={here}: "
                    "build it with the same options"
                )
        self._conv.load_state_dict(state["conv"])
        with torch.no_grad():
            self._last.copy_(state["last"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scheduler.last_epoch = state["scheduler"]["last_epoch"]
        self._mean_squares = {name: list(values) for name, values in state["mean_squares"].items()}
        self._mapes, self._lessons = dict(state["mapes"]), dict(state["lessons"])
        self._turn = state["turn"]


def _mean_squares(layer: Layer, squares: Sequence[float]) -> list[float]:
    counts = (layer.out * layer.fan_in, layer.out)
    return [square / count for square, count in zip(squares, counts, strict=False)]


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
            network: Learns what the mean misses; defaults to one of the default size that looks at 16 samples a batch.
            mean_decay: Weight of the past in the running mean of true gradients.
            trust_rate: How far one BP batch moves a layer's trust, per unit of cosine.
        """
        self._network = network or PaperPredictor(samples=16)
        self._means = RunningRows(mean_decay)
        self._trust_rate = trust_rate
        self._trust: dict[str, float] = {}

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size the network."""
        self._network.attach(layers)

    def see(self, layer: Layer, output: Tensor) -> Seen:
        """What the network wants to see."""
        return self._network.see(layer, output)

    def predict(self, layer: Layer, seen: Seen) -> Rows | None:
        """The trusted share of mean and correction; None where there is no trust at all."""
        factor = self.trust(layer.name)
        return self._network.predict(layer, seen, self._means.get(layer.name), factor) if factor > 0 else None

    def trust(self, layer: str) -> float:
        """0 to 1; 0 before the first true gradient."""
        return self._trust.get(layer, 0.0)

    def learn(self, lessons: Sequence[Lesson]) -> dict[str, Agreement]:
        """Let the network learn what the mean misses, then move the mean and the trust."""
        picked = self._network.choose(lessons)
        known = ((lesson.layer.name, self._means.get(lesson.layer.name)) for lesson in picked)
        found = self._network.fit(picked, {name: rows for name, rows in known if rows is not None})
        for lesson in picked:
            name = lesson.layer.name
            self._means.add(name, lesson.truth)
            self._trust[name] = min(max(self.trust(name) + self._trust_rate * found[name].cosine, 0.0), 1.0)
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


_PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "trusted": TrustedPredictor,
    "paper": PaperPredictor,
    "literal": lambda: PaperPredictor(literal=True),
}


def names() -> list[str]:
    """Every predictor that `build` knows."""
    return list(_PREDICTORS)


def build(name: str) -> Predictor:
    """A predictor by name: `trusted`, `paper`, or `literal` (the paper's with random output and raw targets)."""
    if name not in _PREDICTORS:
        raise ValueError(f"predictor={name!r} is unknown; known: {', '.join(_PREDICTORS)}, an object, or None")
    return _PREDICTORS[name]()
