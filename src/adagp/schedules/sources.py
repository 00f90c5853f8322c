"""The table of sources: what each one needs, what it costs and how it is drawn.

It is free of torch. The engine, the cost model, the accelerator model, schedule grids, the command line and the docs
all read it, so a source is known everywhere once it stands here. `adagp.sources.register` adds one of a user's own.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class GradientWork:
    """What a source may have to compute for one layer in one batch.

    Attributes:
        macs: Multiply-adds of the exact weight gradient.
        positions: Positions of one sample at which the weight is used.
        parameters: Entries of the gradient.
        topk: Output gradients that `topk` keeps per sample and channel.
        features: Inputs of the predictor's last layer.
        rate: The share of positions that `sampled` draws.
    """

    macs: int
    positions: int
    parameters: int
    topk: int
    features: int
    rate: float = 1.0


@dataclass(frozen=True)
class SourceSpec:
    """One source.

    Attributes:
        name: As plans, tables and the command line write it.
        about: One line for people.
        letter: One character for grids, for eyes and terminals without colour.
        colour: The same as `#rrggbb`.
        needs_graph: Autograd must compute the true gradient of the layer's weight.
        needs_features: The predictor must see the layer: its output, its input, or what else it asks for.
        needs_grad_output: The gradient of the loss at the layer's output must arrive, in a backward pass.
        needs_forward: The forward pass must run for another reason than these.
        remembers: It learns from true gradients.
        updates: The optimizer moves the weight; False where it is left alone.
        is_local: What autograd computes is the gradient of a loss of the layer's own part of the network.
        unbiased: Its mean over many batches is that of the true gradient, so that it adds noise and nothing else.
        on_array: The accelerator model knows its cost.
        macs: Multiply-adds of supplying one layer's gradient.
    """

    name: str
    about: str
    letter: str
    colour: str
    needs_graph: bool = False
    needs_features: bool = False
    needs_grad_output: bool = False
    needs_forward: bool = False
    remembers: bool = False
    updates: bool = True
    is_local: bool = False
    unbiased: bool = False
    on_array: bool = False
    macs: Callable[[GradientWork], int] = lambda _: 0

    @property
    def needs_backward(self) -> bool:
        """Whether a backward pass must run, which then leaves this layer's gradient in `.grad`."""
        return self.needs_graph or self.needs_grad_output

    @property
    def is_true(self) -> bool:
        """Whether the gradient is that of the model's loss, by autograd, so that others can learn from it."""
        return self.needs_graph and not self.is_local

    @property
    def uses_activations(self) -> bool:
        """Whether the forward pass must run."""
        return self.needs_backward or self.needs_features or self.needs_forward


# Okabe and Ito's palette, which colour-blind eyes can tell apart; what is exact stays pale.
_SPECS = {
    spec.name: spec
    for spec in (
        SourceSpec(
            "backprop",
            "the true gradient, by autograd",
            "b",
            "#dddddd",
            needs_graph=True,
            unbiased=True,
            on_array=True,
            macs=lambda work: work.macs,
        ),
        SourceSpec(
            "predicted",
            "rows from the predictor, scaled by its trust",
            "P",
            "#56B4E9",
            needs_features=True,
            on_array=True,
            macs=lambda work: work.features * work.parameters,
        ),
        SourceSpec("zero", "zeros: momentum and weight decay still move the weight", "Z", "#E69F00", on_array=True),
        SourceSpec("random", "normal numbers, drawn again in every batch", "R", "#D55E00", needs_forward=True),
        SourceSpec(
            "topk",
            "the weight gradient from the k largest output gradients per sample and channel",
            "T",
            "#009E73",
            needs_grad_output=True,
            macs=lambda work: work.macs * min(work.topk, work.positions) // work.positions,
        ),
        SourceSpec(
            "sampled",
            "the weight gradient from positions drawn by their size, without bias",
            "I",
            "#0072B2",
            needs_grad_output=True,
            unbiased=True,
            macs=lambda work: round(work.macs * work.rate),
        ),
        SourceSpec(
            "local",
            "the gradient of a loss of its own part of the network, by autograd",
            "O",
            "#882255",
            needs_graph=True,
            is_local=True,
            macs=lambda work: work.macs,
        ),
        SourceSpec("last", "the last true gradient", "L", "#CC79A7", remembers=True),
        SourceSpec("mean", "the running mean of the true gradients", "M", "#F0E442", remembers=True),
        SourceSpec("skip", "None: the optimizer leaves the weight alone", "S", "#999999", updates=False, on_array=True),
    )
}


def specs() -> Mapping[str, SourceSpec]:
    """Every known source by name, as it is now and as it will be."""
    return MappingProxyType(_SPECS)


def names() -> frozenset[str]:
    """The names of all known sources."""
    return frozenset(_SPECS)


def spec(name: str) -> SourceSpec:
    """The source of that name.

    Raises:
        ValueError: When there is none.
    """
    if name not in _SPECS:
        raise ValueError(f"source={name!r} is unknown; known sources: {', '.join(sorted(_SPECS))}")
    return _SPECS[name]


def add(new: SourceSpec) -> None:
    """Make a source known.

    Raises:
        ValueError: When its name or its letter is taken, or it cannot be drawn.
    """
    if new.name in _SPECS:
        raise ValueError(f"source {new.name!r} exists already: choose another name, or sources.unregister it first")
    if not re.fullmatch("#[0-9a-fA-F]{6}", new.colour):
        raise ValueError(f"source {new.name!r}: colour {new.colour!r} is not of the form #rrggbb")
    taken = {known.letter: known.name for known in _SPECS.values()}
    if len(new.letter) != 1 or new.letter in taken:
        owner = f"is taken by {taken[new.letter]!r}" if new.letter in taken else "is not one character"
        raise ValueError(f"source {new.name!r}: letter {new.letter!r} {owner}: choose another")
    _SPECS[new.name] = new


def remove(name: str) -> None:
    """Forget a source that was added."""
    _SPECS.pop(name, None)
