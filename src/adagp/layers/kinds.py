"""Layers: modules whose weight gradient `adagp` can supply, and how each type is seen as rows.

A weight gradient is a matrix of *rows*, one per output unit and `fan_in` long, for every layer type. A predictor
sees the layer's output reorganised to `(out, 1, height, width)`: averaged over the batch, with output units as the
predictor's batch (ADA-GP, section 3.6). A `LayerKind` holds both views for one module type; `register` adds one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adagp.layers.rows import Rows
from adagp.layers.sharding import distributed_like, own_part


class LayerKind(ABC):
    """How modules of one type are seen: their weight as rows, their output as the predictor's input."""

    rows_come_first = False
    """Whether row i is `weight[i]`, flat, so that a part of the weight is some of its rows. Subclasses must say so."""

    @abstractmethod
    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """View a tensor shaped like the weight as `(out, fan_in)`."""

    @abstractmethod
    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Undo `rows`: a tensor shaped like the weight."""

    @abstractmethod
    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """Average the output over the batch and return it as `(out, 1, height, width)`.

        Predictors of this package average first, and then give it the mean as a batch of one. It must not write into
        what it is given.
        """

    def reorganise_input(self, module: nn.Module, layer_input: Tensor) -> Tensor:
        """The same for the input, as `(in, 1, height, width)`; override it where it is laid out in another way."""
        return self.reorganise(module, layer_input)

    def sample_inputs(self, module: nn.Module, layer_input: Tensor) -> Tensor:
        """The input of each sample, averaged over its positions: `(samples, in)`."""
        if not self.has_batch(module, layer_input):
            return self.reorganise_input(module, layer_input).flatten(1).mean(1)[None]
        each = [self.reorganise_input(module, sample).flatten(1).mean(1) for sample in layer_input.split(1)]
        return torch.stack(each)

    def has_batch(self, module: nn.Module, output: Tensor) -> bool:
        """Whether dimension 0 of this output, or input, is the batch; override it where it is not."""
        return output.dim() > 1

    def suited(self, weight: Tensor) -> "LayerKind":
        """The kind for a weight that lies in memory like this one: rows in the order of memory need no copy."""
        return self

    def parts(self, module: nn.Module) -> "Mapping[str, Part] | None":
        """The weights of a module that has several, each a layer by itself; None for one called `weight`.

        Each is named `MODULE.PART`. A parameter of a child counts where the child itself is never called.
        """
        return None

    def shown(
        self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> tuple[Any, Any]:
        """What a call of the module shows of a part: its input, or None, and what stands for its output.

        A part is a step inside of the module, whose output may be seen by nobody. `reorganise` gets its batch mean.
        """
        return (inputs[0] if inputs else None), output


class Part(NamedTuple):
    """One of several weights of a module, with the kind that sees it as rows."""

    kind: LayerKind
    weight: nn.Parameter
    bias: nn.Parameter | None = None


_KINDS: dict[type[nn.Module] | str, LayerKind] = {}


def register(*module_types: type[nn.Module] | str) -> Callable[[type[LayerKind]], type[LayerKind]]:
    """Class decorator that makes `adagp` cover these module types, and their subclasses, through a `LayerKind`.

    A type may be given by its path, such as `package.module.Class`, so that its library is not imported; `*` stands for
    any characters.
    """

    def add(kind: type[LayerKind]) -> type[LayerKind]:
        for module_type in module_types:
            _KINDS[module_type] = kind()
        return kind

    return add


def unregister(*module_types: type[nn.Module] | str) -> None:
    """Forget module types added by `register`."""
    for module_type in module_types:
        _KINDS.pop(module_type, None)


def kind_of(module: nn.Module) -> LayerKind | None:
    """The `LayerKind` of the nearest registered base class, or None for a type `adagp` does not cover."""
    return next((kind for base in type(module).__mro__ if (kind := _kind_of_type(base)) is not None), None)


def _kind_of_type(kind: type) -> LayerKind | None:
    if kind in _KINDS:
        return _KINDS[kind]
    path = f"{kind.__module__}.{kind.__qualname__}"
    return next((_KINDS[key] for key in _KINDS if isinstance(key, str) and fnmatchcase(path, key)), None)


def _batch_mean(output: Tensor) -> Tensor:
    """Mean over dimension 0, read in memory order: a strided sum of a channels-last tensor is 25 x slower on a CPU."""
    if len(output) == 1:
        return output[0]
    if output.dim() == 4 and output.stride(1) == 1 and output.shape[1] > 1:
        return output.permute(0, 2, 3, 1).mean(0).permute(2, 0, 1)
    return output.mean(0)


class _Spatial(LayerKind):
    """Layers whose output is `(batch, out, *positions)`, or the same without a batch."""

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """Output channels become the predictor's batch; depth is folded into height."""
        mean = _batch_mean(output) if self.has_batch(module, output) else output
        return mean.reshape(mean.shape[0], 1, -1, mean.shape[-1])

    def sample_inputs(self, module: nn.Module, layer_input: Tensor) -> Tensor:
        """The mean over the positions of each channel."""
        batched = layer_input if self.has_batch(module, layer_input) else layer_input[None]
        return batched.flatten(2).mean(2)

    def has_batch(self, module: nn.Module, output: Tensor) -> bool:
        """As many dimensions as the weight."""
        assert isinstance(module.weight, Tensor)
        return output.dim() == module.weight.dim()


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class Convolution(_Spatial):
    """Convolutions, grouped and depthwise ones too: `fan_in` is `in / groups x kernel positions`."""

    rows_come_first = True

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """One row per output channel."""
        return weight_like.flatten(1)

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Back to `(out, in / groups, *kernel)`."""
        assert isinstance(module.weight, Tensor)
        return rows.reshape(module.weight.shape)

    def suited(self, weight: Tensor) -> LayerKind:
        """Channels-last weights have their input channels last in each row too."""
        is_own = type(self) is not Convolution  # a user's kind has its reasons
        return self if is_own or weight.is_contiguous() or weight.dim() < 4 else ChannelsLastConvolution()


class ChannelsLastConvolution(Convolution):
    """Convolutions whose weight lies in memory as `(out, *kernel, in / groups)`, and so do its rows."""

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """One row per output channel."""
        return weight_like.movedim(1, -1).flatten(1)

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Back to `(out, in / groups, *kernel)`."""
        assert isinstance(module.weight, Tensor)
        out, inputs, *kernel = module.weight.shape
        return rows.reshape(out, *kernel, inputs).movedim(-1, 1)


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvolution(_Spatial):
    """Transposed convolutions hold their weight as `(in, out / groups, *kernel)`: rows gather it by output channel."""

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """One row per output channel, in the order of the output."""
        groups = int(module.groups)  # type: ignore[arg-type]
        in_channels, out_per_group, *kernel = weight_like.shape
        grouped = weight_like.reshape(groups, in_channels // groups, out_per_group, *kernel)
        return grouped.transpose(1, 2).reshape(groups * out_per_group, -1)

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Back to `(in, out / groups, *kernel)`."""
        assert isinstance(module.weight, Tensor)
        groups = int(module.groups)  # type: ignore[arg-type]
        in_channels, out_per_group, *kernel = module.weight.shape
        grouped = rows.reshape(groups, out_per_group, in_channels // groups, *kernel)
        return grouped.transpose(1, 2).reshape(module.weight.shape)


@register(nn.Linear)
class FullyConnected(LayerKind):
    """Linear layers with any leading dimensions: the first is the batch, the others are positions."""

    rows_come_first = True

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """The weight is rows already."""
        return weight_like

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """The weight is rows already."""
        return rows

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """`(batch, *positions, out)` becomes `(out, 1, 1, positions)`."""
        mean = _batch_mean(output) if self.has_batch(module, output) else output
        return mean.reshape(-1, mean.shape[-1]).t()[:, None, None, :]

    def sample_inputs(self, module: nn.Module, layer_input: Tensor) -> Tensor:
        """The mean over the positions of each input."""
        batched = layer_input if self.has_batch(module, layer_input) else layer_input[None]
        return batched.flatten(1, -2).mean(1) if batched.dim() > 2 else batched


@dataclass(frozen=True, eq=False)
class Layer:
    """A covered layer: the module whose call shows it, its parameters, and the shape of its rows.

    A part is one of several weights inside of the module, whose output is not the module's. `own` are the rows that
    this rank holds of a sharded weight; None where it holds all, in the usual way.
    """

    name: str
    module: nn.Module
    kind: LayerKind
    weight: nn.Parameter
    bias: nn.Parameter | None
    out: int
    fan_in: int
    is_part: bool = False
    own: slice | None = None

    @property
    def own_out(self) -> int:
        """How many rows this rank holds: those that sources give, and gradients have."""
        return self.out if self.own is None else self.own.stop - self.own.start

    def own_part(self, rows: slice) -> slice:
        """Which of the rows that this rank holds are among these, counted from the first that it holds."""
        if self.own is None:
            return rows
        start, stop, step = rows.indices(self.out)
        first = max(start, self.own.start + (start - self.own.start) % step)
        return slice(
            min(first, self.own.stop) - self.own.start, max(min(stop, self.own.stop) - self.own.start, 0), step
        )

    def parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradient this layer's source supplies."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def gradient(self) -> Rows | None:
        """The gradient now in `.grad` as float32 rows, or None where backward did not reach the weight.

        A bias that backward did not reach, as in the penalty of a gradient, has the gradient 0.
        """
        grad = self.weight.grad
        if grad is None:
            return None
        bias = None
        if self.bias is not None:
            reached = self.bias.grad
            bias = torch.zeros_like(self.bias) if reached is None else reached
            bias = (bias if self.own is None else own_part(bias)).detach().float().view(-1, 1)
        rows = self.kind.rows(self.module, grad) if self.own is None else own_part(grad).flatten(1)
        return Rows(rows.float(), bias)

    def assign(self, rows: Rows | None) -> None:
        """Put rows, or None, into `.grad` with the type and memory layout of each parameter.

        A frozen parameter gets None: the optimizer would move any parameter that has a gradient.
        """
        weight, bias = self.weight, self.bias
        if rows is None or not weight.requires_grad:
            weight.grad = None
        elif self.own is None:
            weight.grad = _like(weight, self.kind.unrows(self.module, rows.weight))
        else:
            weight.grad = _own_like(weight, rows.weight)
        if bias is not None:
            row = rows.bias if rows is not None and bias.requires_grad else None
            like = _like if self.own is None else _own_like
            bias.grad = None if row is None else like(bias, row.reshape(-1))

    def add_gradient(self, weight: Tensor, bias: Tensor | None) -> None:
        """Add to `.grad`, as backward would: `weight` and `bias` are shaped like the parameters."""
        for parameter, gradient in ((self.weight, weight), (self.bias, bias)):
            if parameter is not None and gradient is not None:
                new = _like(parameter, gradient)
                parameter.grad = new if parameter.grad is None else parameter.grad.add_(new)

    def samples(self, output: Tensor) -> int:
        """How many samples an output holds."""
        return output.shape[0] if self.kind.has_batch(self.module, output) else 1

    def reorganise_input(self, layer_input: Tensor) -> Tensor:
        """The input as the predictor sees it, `(in, 1, height, width)`: its mean over the batch."""
        reorganised = self.kind.reorganise_input(self.module, layer_input)
        if reorganised.dim() != 4 or reorganised.shape[1] != 1:
            raise ValueError(
                f"layer {self.name!r}: {type(self.kind).__name__}.reorganise_input gave shape "
                f"{tuple(reorganised.shape)}; expected (in, 1, height, width)"
            )
        return reorganised

    def reorganise(self, output: Tensor) -> Tensor:
        """The output as the predictor sees it, `(out, 1, height, width)`: its mean over the batch."""
        reorganised = self.kind.reorganise(self.module, output)
        if reorganised.dim() != 4 or reorganised.shape[:2] != (self.out, 1):
            raise ValueError(
                f"layer {self.name!r}: {type(self.kind).__name__}.reorganise gave shape {tuple(reorganised.shape)}; "
                f"expected ({self.out}, 1, height, width), one entry per row of the weight"
            )
        return reorganised


def _like(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    shape = parameter.shape
    if gradient.dtype == parameter.dtype and gradient.shape == shape:
        if gradient.stride() == parameter.stride():
            return gradient
        steps = zip(gradient.stride(), parameter.stride(), shape, strict=True)
        if all(mine == like for mine, like, size in steps if size > 1):
            return gradient.as_strided(shape, parameter.stride())  # optimizers compare all strides
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def _own_like(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """The gradient of a sharded parameter, given that of the rows that this rank holds."""
    own = gradient.reshape(len(gradient), *parameter.shape[1:]).to(parameter.dtype)
    return distributed_like(parameter, own)
