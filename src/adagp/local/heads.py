"""Heads: what turns the activations at a cut into an output like the model's own, and that into a local loss.

They are built from shapes alone. `dgl` is one hidden layer and a linear one, after Belilovsky et al. (arXiv
1901.08164). `predsim` adds the similarity matching of Nokland and Eidnes (arXiv 1901.06656).
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from adagp.local.losses import Loss

Build = Callable[[Sequence[int], Sequence[int]], nn.Module]
"""Makes a head's network from the shapes of the activations and of the model's output, both of one sample."""

_SIDE = 16
"""Larger maps are averaged to this width before a head's convolution, which would else cost more than the part."""
_GRID = 2
"""Positions are pooled to a grid of this width before the linear layer."""
_HIDDEN = 256
"""The most features of the hidden layer over vectors."""
_SIMILARITY_SHARE = 0.99
"""The share of similarity matching in the loss of `predsim`, as published."""
# By the number of axes of positions. Two axes in all are tokens and their features, as in a Transformer.
_CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_POOLS = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}

_UNKNOWN = (
    "no head is known from activations of shape {activation} to an output of shape {output} for each sample: give "
    "Local(head=...) a function of both shapes that returns a module"
)


class Head(nn.Module):
    """The local loss at one cut: a small network, and the loss of its output."""

    def __init__(self, network: nn.Module, loss: Loss) -> None:
        """`network` maps activations to an output like the model's."""
        super().__init__()
        self.network, self._loss = network, loss

    def forward(self, activations: Tensor, target: Any) -> Tensor:
        """The local loss: one number."""
        return self._loss(self.network(activations), target)


class SimilarityHead(nn.Module):
    """Prediction and similarity matching: samples of one class shall have similar features, others not."""

    def __init__(self, features: nn.Module, network: nn.Module, loss: Loss, classes: int) -> None:
        """`features` maps activations to what is compared between samples."""
        super().__init__()
        self.features, self.network, self._loss, self._classes = features, network, loss, classes

    def forward(self, activations: Tensor, target: Any) -> Tensor:
        """The local loss: one number."""
        predicted = self._loss(self.network(activations), target)
        labels = nn.functional.one_hot(target, self._classes).to(activations.dtype)
        wanted, found = similarity(labels), similarity(self.features(activations))
        matched = nn.functional.mse_loss(found, wanted)
        return (1 - _SIMILARITY_SHARE) * predicted + _SIMILARITY_SHARE * matched


def similarity(features: Tensor) -> Tensor:
    """The cosine of each two samples' features, centred per sample: `(samples, samples)`.

    A channel with positions stands for its standard deviation over them.
    """
    if features.dim() > 2:
        features = features.flatten(2).std(2)
    centred = features - features.mean(1, keepdim=True)
    unit = nn.functional.normalize(centred, dim=1, eps=1e-8)
    return unit @ unit.t()


def _dgl(activation: Sequence[int], output: Sequence[int], loss: Loss) -> nn.Module:
    return Head(_network(activation, output), loss)


def _predsim(activation: Sequence[int], output: Sequence[int], loss: Loss) -> nn.Module:
    if len(output) != 1:
        raise ValueError(
            f"head='predsim' compares whole samples by their class, and the model's output has shape {tuple(output)} "
            "for each: use head='dgl'"
        )
    if len(activation) == 1:
        features: nn.Module = nn.Linear(activation[0], activation[0])
        network: nn.Module = nn.Linear(activation[0], output[0])
    elif len(activation) - 1 in _CONVOLUTIONS:
        features, network = _convolution(activation), _pooled_linear(activation, output[0])
    else:
        raise ValueError(_UNKNOWN.format(activation=tuple(activation), output=tuple(output)))
    return SimilarityHead(features, network, loss, output[0])


HEADS: dict[str, Callable[[Sequence[int], Sequence[int], Loss], nn.Module]] = {"dgl": _dgl, "predsim": _predsim}
"""The kinds of heads by name."""


def build(kind: str | Build, activation: Sequence[int], output: Sequence[int], loss: Loss) -> nn.Module:
    """A head; called with activations and target it gives the local loss.

    Args:
        kind: A name from `HEADS`, or a function that makes the network from both shapes.
        activation: The shape of the activations at the cut, without the batch.
        output: The shape of the model's output, without the batch.
        loss: The loss of an output and a target.

    Raises:
        ValueError: When no head is known for these shapes.
    """
    if isinstance(kind, str):
        return HEADS[kind](activation, output, loss)
    return Head(kind(activation, output), loss)


def _network(activation: Sequence[int], output: Sequence[int]) -> nn.Module:
    """One hidden layer, and a linear one."""
    channels, *positions = activation
    if len(output) == 1 and not positions:
        hidden = min(channels, _HIDDEN)
        return nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, output[0]))
    if len(output) == 1 and len(positions) == 1:
        return nn.Sequential(nn.LayerNorm(positions[0]), _MeanOfPositions(), nn.Linear(positions[0], output[0]))
    if len(output) == 1 and len(positions) in _CONVOLUTIONS:
        return nn.Sequential(
            _convolution(activation), _norm(activation), nn.ReLU(), _pooled_linear(activation, output[0])
        )
    if len(output) == 2 and len(activation) == 2:  # a token for each token
        return nn.Sequential(nn.LayerNorm(activation[1]), nn.Linear(activation[1], output[1], bias=False))
    if len(output) == 3 and len(activation) == 3:  # a map for a map
        return nn.Sequential(
            _convolution(activation),
            _norm(activation),
            nn.ReLU(),
            nn.Conv2d(channels, output[0], 1),
            _Resize(output[1:]),
        )
    raise ValueError(_UNKNOWN.format(activation=tuple(activation), output=tuple(output)))


def _convolution(activation: Sequence[int]) -> nn.Module:
    channels, *positions = activation
    module: nn.Module = _CONVOLUTIONS[len(positions)](channels, channels, 3, padding=1, bias=False)
    if max(positions) <= _SIDE:
        return module
    return nn.Sequential(_POOLS[len(positions)](tuple(min(side, _SIDE) for side in positions)), module)


def _norm(activation: Sequence[int]) -> nn.Module:
    """Normalises by the batch alone: a head is never evaluated."""
    channels, *positions = activation
    module: nn.Module = _NORMS[len(positions)](channels, track_running_stats=False)
    return module


def _pooled_linear(activation: Sequence[int], outputs: int) -> nn.Module:
    channels, *positions = activation
    grid = tuple(min(side, _GRID) for side in positions)
    entries = channels * prod(grid)
    return nn.Sequential(_POOLS[len(positions)](grid), nn.Flatten(), nn.Linear(entries, outputs))


class _MeanOfPositions(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)


class _Resize(nn.Module):
    def __init__(self, size: Sequence[int]) -> None:
        super().__init__()
        self._size = tuple(size)

    def forward(self, maps: Tensor) -> Tensor:
        if maps.shape[2:] == self._size:
            return maps
        return nn.functional.interpolate(maps, self._size, mode="bilinear", align_corners=False)
