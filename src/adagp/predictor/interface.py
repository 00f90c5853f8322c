"""What the engine asks of a predictor, and what it gives it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from adagp.layers import Layer
from adagp.predictor.glance import Glance
from adagp.quality import Agreement
from adagp.rows import Rows


@dataclass(frozen=True)
class Seen:
    """What a layer saw in one batch.

    Predictors that want more of a layer (its input, the loss's gradient at the model's output) add a field here.
    """

    output: Tensor
    """The reorganised output as the predictor pools it, `(out, features)`, at the layer's own scale."""

    @staticmethod
    def mean(parts: Sequence["Seen"]) -> "Seen":
        """Several calls of one layer in a batch (a reused weight, accumulated micro-batches) seen as one."""
        return parts[0] if len(parts) == 1 else Seen(torch.stack([part.output for part in parts]).mean(0))


@dataclass(frozen=True)
class Lesson:
    """One layer with what it saw, its true gradient, and the sum of squares of each of the gradient's blocks.

    `seen` is None where the predictor did not ask to see the layer in this batch.
    """

    layer: Layer
    seen: Seen | None
    truth: Rows
    squares: tuple[float, ...]


class Predictor(Protocol):
    """What the engine asks of a predictor."""

    def attach(self, layers: Sequence[Layer]) -> None:
        """Size everything for these layers; called once, before anything else."""

    def studied(self) -> Collection[str]:
        """The layers it wants to see in the next batch with a backward; of the others it is told the truth alone."""

    def glance(self, layer: Layer, output: Tensor) -> Glance:
        """Take from an output what must not be lost; called inside the forward hook, where every operation is felt.

        `Reading.of(layer, output).glance(output)` makes one; readings are worth keeping while outputs are alike.
        Autograd and autocast are as the user's forward has them: detach, and make no product of low precision.
        """

    def see(self, glances: Sequence[tuple[Layer, Glance]]) -> list[Seen]:
        """Reduce glances to what prediction needs; called before they take noticeable memory."""

    def predict(self, asked: Sequence[tuple[Layer, Seen]]) -> Iterator[Rows | None]:
        """Rows for each of these layers in turn; None where the prediction is not worth applying.

        All layers of a batch at once, because a small network costs by the number of its operations.
        """

    def learn(self, lessons: Sequence[Lesson]) -> dict[str, Agreement]:
        """Learn from true gradients; returns how the predictions made before learning agreed with them."""

    def trust(self, layer: str) -> float:
        """The factor, 0 to 1, already inside what `predict` returns.

        Asked before every batch, also before the first lesson. Where it is 0 the layer rests: `predict` is not asked.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on after a restart, in plain types and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
