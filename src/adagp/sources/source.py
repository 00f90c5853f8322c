"""What the engine asks of a source."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.schedules import Plan, SourceSpec, Trial


class GradientRequest(NamedTuple):
    """A layer to supply a gradient for, its features (None if there are none), and the batch's number of samples."""

    layer: Layer
    features: Features | None
    samples: int


class Source:
    """Base of all sources; `register` gives a subclass its `spec`, which says what it needs."""

    spec: SourceSpec
    always_finite = False
    """Whether its rows are finite by construction, so that they are not checked. Subclasses must say so themselves."""

    keeps_less = False
    """Whether it saves memory between forward and backward. In its batches ReLU and dropout then keep masks."""

    def attach(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        """Get to know the model and its layers, once. ValueError refuses options that do not fit them."""

    def wants_features(self, layer: str) -> bool:
        """Whether it uses this layer's features in this batch. Asked before the forward if `needs_features`."""
        return True

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """The rows for this batch, or None to leave the layer alone."""
        raise NotImplementedError

    def gradients(self, requests: Sequence[GradientRequest]) -> Iterator[Rows | None]:
        """What `gradient` gives, layer by layer; to be overridden where work for all layers at once is cheaper."""
        return (self.gradient(*one) for one in requests)

    def options(self) -> str:
        """The source's options in brackets, or an empty string; a saved state must match them."""
        return ""

    def begin(self, plan: Plan) -> None:
        """Get to know the plan of a batch, before its forward. Called again for the next micro-batch."""

    def refuse(self, layer: Layer) -> str:
        """Why this source cannot serve a layer, with the remedy; empty where it can."""
        return ""

    def receive(self, layer: Layer, layer_input: Tensor, grad_output: Tensor) -> None:
        """Add to the layer's `.grad`, given its input and the gradient at its output.

        Called in backward if its spec `needs_grad_output`.
        """

    def keep(self, layer: Layer, layer_input: Tensor) -> tuple[Tensor, ...]:
        """What is kept of a layer's input from the forward to the backward; override it to keep less."""
        return (layer_input,)

    def receive_kept(self, layer: Layer, kept: tuple[Tensor, ...], grad_output: Tensor) -> None:
        """The same as `receive`, given what was kept."""
        self.receive(layer, kept[0], grad_output)

    def take_trials(self) -> dict[str, Trial]:
        """What the `trial_rates` of the batch's plan showed of each layer; asked once, after the batch."""
        return {}

    def learn(self, true_grads: Mapping[str, Rows]) -> None:
        """Learn from the true gradients of a batch, by layer. Called if its spec `remembers`."""

    def state_dict(self) -> dict[str, Any]:
        """What the source remembers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
