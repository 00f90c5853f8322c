"""What the engine asks of a predictor, and what it gives it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from adagp.layers import Layer
from adagp.layers.rows import Rows
from adagp.predictors.pooling import BatchSum
from adagp.quality import GradientAlignment


@dataclass(frozen=True)
class Features:
    """What a predictor knows of one layer in one batch."""

    output: Tensor
    """The reorganised output, averaged over the batch and pooled: `(out, features)`, at the layer's own scale."""

    @staticmethod
    def mean(parts: Sequence["Features"]) -> "Features":
        """The mean over several calls of one layer in a batch: a reused weight, or accumulated micro-batches."""
        return parts[0] if len(parts) == 1 else Features(torch.stack([part.output for part in parts]).mean(0))


@dataclass(frozen=True)
class TrainingExample:
    """One layer in one batch with true gradients.

    Attributes:
        layer: The layer.
        features: Its features; None where the predictor did not ask for this layer in this batch.
        true_grad: Its true gradient.
        squares: The sum of squares of each block of `true_grad`.
    """

    layer: Layer
    features: Features | None
    true_grad: Rows
    squares: tuple[float, ...]


class Predictor(Protocol):
    """What the engine asks of a predictor."""

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size everything for these layers. Called once, before anything else."""

    def layers_to_train_on(self) -> Collection[str]:
        """The layers whose features it wants in the next batch with a backward; of the others it gets the gradient."""

    def summarize(self, layer: Layer, output: Tensor) -> BatchSum:
        """Reduce an output to what must be kept. Called inside the forward hook, where every operation is slow.

        `SumLayout.of(layer, output).sum_samples(output)` does it; layouts are worth keeping while outputs are alike.
        Autograd and autocast are as the user's forward has them: detach, and make no product in low precision.
        """

    def pool(self, sums: Sequence[tuple[Layer, BatchSum]]) -> list[Features]:
        """Reduce the sums of several layers to features. Called before the sums take noticeable memory."""

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        """Rows for each of these layers, in order; None where the prediction is not worth applying.

        All layers of a batch come at once, because a small network costs by the number of its operations.
        """

    def learn(self, examples: Sequence[TrainingExample]) -> dict[str, GradientAlignment]:
        """Learn from true gradients. Returns how the predictions made before this step align with them."""

    def trust(self, layer: str) -> float:
        """The factor, 0 to 1, that is already inside what `predict` returns.

        Asked before every batch, also before the first example. A layer with trust 0 rests: `predict` is not called.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue after a restart, in plain types and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
