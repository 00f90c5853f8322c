"""What the engine asks of a predictor, and what a predictor asks of the engine."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from adagp.layers import Layer, Rows
from adagp.quality import GradientAlignment, mean_absolute_percentage_errors


@dataclass(frozen=True)
class Pooling:
    """How a layer's input or output is reduced: averaged over the batch, then over the cells of a grid.

    Attributes:
        grid: Positions are averaged to `grid x grid` cells.
        samples: Average at most this many samples of a batch, evenly spread, instead of all. Of outputs with more than
            256 positions fewer are read, down to a quarter.
    """

    grid: int = 4
    samples: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be pooled to."""
        if self.grid < 1:
            raise ValueError(f"grid = {self.grid}: must be at least 1")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples = {self.samples}: must be at least 1, or None for the whole batch")


@dataclass(frozen=True)
class FeatureSpec:
    """What a predictor needs to know of a layer in a batch. Nothing else is computed.

    Attributes:
        output: The pooled output of the layer.
        input: The pooled input of the layer.
        loss_grad: The gradient of the loss at the model's output. It is how a predictor sees labels.
        weighted_input: The layer's inputs, each sample weighted by its own gradient of the loss at the model's output.
        except_for: The names of layers that are predicted without features. `predict` gets an empty `Features` for
            them.
    """

    output: Pooling | None = None
    input: Pooling | None = None
    loss_grad: bool = False
    weighted_input: bool = False
    except_for: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what is no pooling."""
        for name in ("output", "input"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Pooling):
                raise TypeError(f"{name} = {value!r}: give a Pooling, such as Pooling(grid=4), or None")

    @property
    def needs_loss_grad(self) -> bool:
        """Whether the gradient of the loss at the model's output must be computed, in GP too."""
        return self.loss_grad or self.weighted_input


class Features(NamedTuple):
    """What a predictor knows of one layer in one batch, over all calls, micro-batches and ranks.

    A field is None unless the predictor's `FeatureSpec` asks for it.

    Attributes:
        output: `(out, grid x grid)`, the mean over the batch.
        input: `(in, grid x grid)`, the mean over the batch.
        loss_grad: `(model outputs,)`, summed over samples and positions as a gradient is; the same for all layers.
        weighted_input: `(model outputs, in)`: the sum over samples of their `loss_grad` times their input, which is
            averaged over positions. For a last Linear layer this is its weight gradient.
    """

    output: Tensor | None = None
    input: Tensor | None = None
    loss_grad: Tensor | None = None
    weighted_input: Tensor | None = None


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

    def compare(self, predicted: Rows | None) -> GradientAlignment:
        """How a prediction aligns with the true gradient; None predicts nothing. A missing bias is not compared."""
        blocks = self.true_grad.blocks()
        guesses = [torch.zeros_like(block) for block in blocks] if predicted is None else predicted.blocks()
        pairs = [(guess.flatten(), block.flatten()) for guess, block in zip(guesses, blocks, strict=False)]
        guess, true = (torch.cat(side) for side in zip(*pairs, strict=True))
        return GradientAlignment(
            dot=float(guess @ true),
            predicted_square=float(guess @ guess),
            true_square=sum(self.squares[: len(pairs)]),
            count=true.numel(),
            mape=mean_absolute_percentage_errors([guess], [true])[0],
        )


SumOverRanks = Callable[[Sequence[Tensor]], list[Tensor]]
"""Adds tensors up over the ranks that hold other rows of the same layers, in one message."""


def no_other_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sum where this rank holds all rows."""
    return list(tensors)


@runtime_checkable
class RowSharding(Protocol):
    """What the engine asks of a predictor too where each rank holds some of a layer's rows.

    Such a predictor is given the features of whole layers. It learns from, and predicts, the rows `layer.own`.
    """

    def share_rows(self, total: SumOverRanks) -> None:
        """Take what adds up sums over rows. Called once, before `attach`."""


class Predictor(Protocol):
    """What the engine asks of a predictor."""

    @property
    def needs(self) -> FeatureSpec:
        """The features it is given. They must not change after `attach`."""

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size everything for these layers. Called once, before anything else."""

    def layers_to_train_on(self) -> Collection[str]:
        """The layers whose features it wants in the next batch with a backward; of the others it gets the gradient."""

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
