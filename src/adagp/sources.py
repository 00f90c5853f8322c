"""Sources: where a layer's gradient comes from in one batch.

`None` and `0` differ. `skip` leaves `.grad` None: the optimizer does not touch the weight. `zero` writes zeros:
momentum and weight decay still move it. A source that has nothing to give yet returns None and counts as `skip`.
A source speaks for the whole layer, its weight and its bias.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from adagp.kernels import topk_weight_grad
from adagp.layers import Layer
from adagp.predictor import Features, Predictor
from adagp.rows import MEAN_DECAY, Rows, RunningRows
from adagp.schedules import SourceSpec
from adagp.schedules import sources as table


class GradientRequest(NamedTuple):
    """A layer to supply a gradient for, its features (None if there are none), and the batch's number of samples."""

    layer: Layer
    features: Features | None
    samples: int


class Source:
    """Base of all sources; `register` gives a subclass its `spec`, which says what it needs."""

    spec: SourceSpec
    always_finite = False
    """Whether its rows are finite by construction, so that they need not be checked."""

    def wants_output(self, layer: str) -> bool:
        """Whether it uses this layer's output in this batch; asked before the forward where its spec `needs_output`."""
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

    def refuse(self, layer: Layer) -> str:
        """Why this source cannot serve a layer, with the remedy; empty where it can."""
        return ""

    def receive(self, layer: Layer, layer_input: Tensor, grad_output: Tensor) -> None:
        """Given the layer's input and the gradient at its output where its spec `needs_grad_output`.

        Adds to the layer's `.grad`.
        """

    def learn(self, true_grads: Mapping[str, Rows]) -> None:
        """Told every true gradient of a batch, by the layer's name, where its spec `remembers`."""

    def state_dict(self) -> dict[str, Any]:
        """What the source remembers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""


_FACTORIES: dict[str, type[Source]] = {}
SomeSource = TypeVar("SomeSource", bound=type[Source])


def register(spec: SourceSpec) -> Callable[[SomeSource], SomeSource]:
    """Class decorator that makes a source of your own known by name, to plans, tables, grids and the command line.

    The class must be buildable without arguments; `AdaGP(sources=...)` takes one with options.

    Raises:
        ValueError: When the name or the letter is taken, or autograd is to write the gradient, as for `backprop`.
    """
    if spec.needs_graph:
        raise ValueError(
            f"source {spec.name!r}: only backprop's gradient is written by autograd: set needs_graph=False"
        )

    def add(kind: SomeSource) -> SomeSource:
        table.add(spec)
        return _supplies(spec.name)(kind)

    return add


def unregister(name: str) -> None:
    """Forget a source added by `register`.

    Raises:
        ValueError: When no such source was added.
    """
    if name not in _FACTORIES or _FACTORIES[name].__module__ == __name__:
        raise ValueError(f"source {name!r} was not registered by sources.register")
    table.remove(name)
    _FACTORIES.pop(name, None)


def _supplies(name: str) -> Callable[[SomeSource], SomeSource]:
    """Class decorator: the class is the source of that name in the table."""

    def add(kind: SomeSource) -> SomeSource:
        kind.spec = table.spec(name)
        _FACTORIES[name] = kind
        return kind

    return add


@_supplies("backprop")
class Backprop(Source):
    """The true gradient: autograd writes it."""

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """What backward left in `.grad`."""
        return layer.gradient()


class Predicted(Source):
    """Rows from the predictor."""

    spec = table.spec("predicted")

    def __init__(self, predictor: Predictor) -> None:
        """The predictor is shared with the engine, which lets it learn."""
        self._predictor = predictor

    def wants_output(self, layer: str) -> bool:
        """Layers without trust are left out: their prediction would be scaled to zero."""
        return self._predictor.trust(layer) > 0

    def gradients(self, requests: Sequence[GradientRequest]) -> Iterator[Rows | None]:
        """The predictions; None where a layer was not reached or is not trusted at all."""
        rows = self._predictor.predict([(one.layer, one.features) for one in requests if one.features is not None])
        return (None if one.features is None else next(rows) for one in requests)


@_supplies("zero")
class Zero(Source):
    """Zeros: momentum and weight decay go on."""

    always_finite = True

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """Zero rows for weight and bias."""
        weight = torch.zeros(layer.out, layer.fan_in, device=layer.weight.device)
        return Rows(weight, None if layer.bias is None else torch.zeros(layer.out, 1, device=layer.weight.device))


@_supplies("random")
class Random(Source):
    """Normal numbers, drawn again in every batch (paper 003, section 2.2)."""

    always_finite = True

    def __init__(self, std: float | None = None, seed: int = 0) -> None:
        """`std` defaults to one over the number of samples in the batch; the generator is the source's own."""
        if std is not None and not 0 <= std < float("inf"):
            raise ValueError(f"std = {std}: a standard deviation is 0 or more, and finite")
        self._std, self._seed = std, seed
        self.spec = replace(self.spec, needs_forward=std is None)  # it is what tells the batch's size
        self._generator: torch.Generator | None = None
        self._saved: Tensor | None = None

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """Independent entries for weight and bias."""
        generator = self._on(layer.weight.device)
        std = 1 / samples if self._std is None else self._std

        def draw(columns: int) -> Tensor:
            return torch.randn(layer.out, columns, generator=generator, device=layer.weight.device).mul_(std)

        return Rows(draw(layer.fan_in), None if layer.bias is None else draw(1))

    def options(self) -> str:
        """The standard deviation and the seed."""
        return f"(std={self._std}, seed={self._seed})"

    def _on(self, device: torch.device) -> torch.Generator:
        """The generator; made with the first draw, because only then the device is known."""
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self._seed)
            if self._saved is not None:
                self._generator.set_state(self._saved)
        return self._generator

    def state_dict(self) -> dict[str, Any]:
        """The generator's state; None before the first draw."""
        return {"generator": self._saved if self._generator is None else self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing where the saved source would have."""
        self._generator, self._saved = None, state["generator"]


@_supplies("topk")
class TopK(Source):
    """The k largest output gradients per sample and channel stand for all (paper 003, section 2.3).

    The bias gradient is the sum of all of them and stays exact. A loss that contains gradients (`create_graph`) is not
    served: what reaches the weight by the second derivative is left out.
    """

    def __init__(self, k: int = 1, scale: float = 1.0) -> None:
        """Set how many are kept, and a factor for the result.

        Args:
            k: Entries kept per sample and output channel; all of them give the exact gradient.
            scale: The paper multiplies by 1 / batch; a torch loss that averages over the batch has done so already.
        """
        if type(k) is not int or k < 1:
            raise ValueError(f"k = {k}: a whole number of at least one entry per sample and channel must be kept")
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale = {scale}: must be a positive number")
        self._k, self._scale = k, scale

    def options(self) -> str:
        """How many are kept, and the factor."""
        return f"(k={self._k}, scale={self._scale})"

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """What `receive` put into `.grad`."""
        return layer.gradient()

    def refuse(self, layer: Layer) -> str:
        """Only layers that slide one weight over positions can be served, and only if they compute what torch's do."""
        kind = type(layer.module)
        if kind.forward in (nn.Conv2d.forward, nn.Linear.forward):
            return ""
        own = "" if not isinstance(layer.module, nn.Conv2d | nn.Linear) else " with a forward of its own"
        return (
            f"topk serves Conv2d and Linear, and layer {layer.name!r} is {kind.__name__}{own}: give it another source"
        )

    def receive(self, layer: Layer, layer_input: Tensor, grad_output: Tensor) -> None:
        """Add the sparse weight gradient and the exact bias gradient."""
        module = layer.module
        if isinstance(module, nn.Conv2d):
            image, grad_output, options = _convolution(module, layer_input, grad_output)
        else:
            image, grad_output, options = _positions_as_image(layer_input), _positions_as_image(grad_output), {}
        shape = layer.weight.shape if layer.weight.dim() == 4 else (*layer.weight.shape, 1, 1)
        common = torch.promote_types(image.dtype, grad_output.dtype)  # under autocast they differ
        weight = topk_weight_grad(image.to(common), grad_output.to(common), shape, k=self._k, **options)
        bias = None if layer.bias is None else grad_output.sum((0, 2, 3), dtype=weight.dtype)
        layer.add_gradient(weight.mul_(self._scale).view(layer.weight.shape), bias)


def _convolution(module: nn.Conv2d, image: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Input and `grad_output` of a convolution, with a batch and explicit padding, and the convolution's options."""
    if image.dim() == 3:
        image, grad_output = image[None], grad_output[None]
    padding: Any = module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        image, padding = nn.functional.pad(image, module._reversed_padding_repeated_twice, mode), 0
    options = {"stride": module.stride, "padding": padding, "dilation": module.dilation, "groups": module.groups}
    return image, grad_output, options


def _positions_as_image(tensor: Tensor) -> Tensor:
    """`(batch, *positions, features)` as `(batch, features, positions, 1)`, without moving anything."""
    batched = tensor if tensor.dim() > 1 else tensor[None]
    return batched.reshape(len(batched), prod(batched.shape[1:-1]), batched.shape[-1]).transpose(1, 2)[..., None]


@_supplies("skip")
class Skip(Source):
    """None: the optimizer leaves the layer alone."""

    always_finite = True

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """Nothing."""
        return None


class Remembered(Source):
    """A running mean of the true gradients, or the last one."""

    always_finite = True

    def __init__(self, decay: float) -> None:
        """`decay` is the weight of the past; 0 remembers only the last true gradient."""
        self._memory = RunningRows(decay)

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """A copy of what is remembered, so that clipping `.grad` does not reach the memory."""
        rows = self._memory.get(layer.name)
        return None if rows is None else rows.clone()

    def learn(self, true_grads: Mapping[str, Rows]) -> None:
        """Move the memory towards the true gradients."""
        self._memory.add(true_grads)

    def state_dict(self) -> dict[str, Any]:
        """The remembered rows."""
        return self._memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._memory.load_state_dict(state)


@_supplies("last")
class Last(Remembered):
    """The last true gradient."""

    def __init__(self) -> None:
        """Nothing of the past counts."""
        super().__init__(decay=0.0)


@_supplies("mean")
class Mean(Remembered):
    """The running mean of the true gradients."""

    def __init__(self) -> None:
        """About ten batches count."""
        super().__init__(decay=MEAN_DECAY)


def build(names: frozenset[str], predictor: Predictor | None, given: Mapping[str, Source]) -> dict[str, Source]:
    """The source objects for these names, those `given` among them; ValueError for a name that is unknown."""
    strangers = given.keys() - names
    if strangers:
        asked = ", ".join(sorted(names))
        raise ValueError(f"sources={sorted(strangers)}: no plan of the schedule asks for them, only for {asked}")
    built: dict[str, Source] = {}
    for name in sorted(names):
        if name in given:
            built[name] = given[name]
        elif name == "predicted":
            if predictor is not None:
                built[name] = Predicted(predictor)
        elif name in _FACTORIES:
            built[name] = _FACTORIES[name]()
        else:
            raise ValueError(f"source {name!r} is unknown; known sources: predicted, {', '.join(sorted(_FACTORIES))}")
    return built
