"""Layers: modules whose weight gradient `adagp` can supply, and how each type is seen as rows.

A weight gradient is a matrix of *rows*, one per output unit and `fan_in` long, whatever the layer. A predictor
sees the layer's output reorganised to `(out, 1, height, width)`: averaged over the batch, with output units as the
predictor's batch (ADA-GP, section 3.6). A `LayerKind` holds both views for one module type; `register` adds one.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adagp.rows import Rows


class LayerKind(ABC):
    """How modules of one type are seen: their weight as rows, their output as the predictor's input."""

    @abstractmethod
    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """View a tensor shaped like the weight as `(out, fan_in)`."""

    @abstractmethod
    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Undo `rows`: a tensor shaped like the weight."""

    @abstractmethod
    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """Average the output over the batch and return it as `(out, 1, height, width)`."""


_KINDS: dict[type[nn.Module], LayerKind] = {}


def register(*module_types: type[nn.Module]) -> Callable[[type[LayerKind]], type[LayerKind]]:
    """Class decorator that makes `adagp` cover these module types, and their subclasses, through a `LayerKind`."""

    def add(kind: type[LayerKind]) -> type[LayerKind]:
        for module_type in module_types:
            _KINDS[module_type] = kind()
        return kind

    return add


def unregister(*module_types: type[nn.Module]) -> None:
    """Forget module types added by `register`."""
    for module_type in module_types:
        _KINDS.pop(module_type, None)


def kind_of(module: nn.Module) -> LayerKind | None:
    """The `LayerKind` of the nearest registered base class, or None for a type `adagp` does not cover."""
    return next((_KINDS[base] for base in type(module).__mro__ if base in _KINDS), None)


def _batch_mean(output: Tensor) -> Tensor:
    """Mean over dimension 0, read in memory order: a strided sum of a channels-last tensor is 25 x slower on a CPU."""
    if output.dim() == 4 and not output.is_contiguous() and output.is_contiguous(memory_format=torch.channels_last):
        return output.permute(0, 2, 3, 1).mean(0).permute(2, 0, 1)
    return output.mean(0)


def _channels_first(module: nn.Module, output: Tensor) -> Tensor:
    """Reorganise `(batch, out, *positions)`, or the same without a batch; depth is folded into height."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    mean = _batch_mean(output) if output.dim() == weight.dim() else output
    return mean.reshape(mean.shape[0], 1, -1, mean.shape[-1])


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class Convolution(LayerKind):
    """Convolutions, grouped and depthwise ones too: `fan_in` is `in / groups x kernel positions`."""

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """One row per output channel."""
        return weight_like.flatten(1)

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Back to `(out, in / groups, *kernel)`."""
        assert isinstance(module.weight, Tensor)
        return rows.reshape(module.weight.shape)

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """Output channels become the predictor's batch."""
        return _channels_first(module, output)


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvolution(LayerKind):
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

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """Output channels become the predictor's batch."""
        return _channels_first(module, output)


@register(nn.Linear)
class FullyConnected(LayerKind):
    """Linear layers with any leading dimensions: the first is the batch, the others are positions."""

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """The weight is rows already."""
        return weight_like

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """The weight is rows already."""
        return rows

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """`(batch, *positions, out)` becomes `(out, 1, 1, positions)`."""
        mean = output.mean(0) if output.dim() > 1 else output
        return mean.reshape(-1, mean.shape[-1]).t()[:, None, None, :]


@dataclass(frozen=True, eq=False)
class Layer:
    """A covered layer: the module, its parameters, and the shape of its rows."""

    name: str
    module: nn.Module
    kind: LayerKind
    weight: nn.Parameter
    bias: nn.Parameter | None
    out: int
    fan_in: int

    def parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradient this layer's source supplies."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def gradient(self) -> Rows | None:
        """The gradient now in `.grad` as float32 rows, or None where backward did not reach the weight."""
        if self.weight.grad is None:
            return None
        bias = None if self.bias is None or self.bias.grad is None else self.bias.grad.float().reshape(-1, 1)
        return Rows(self.kind.rows(self.module, self.weight.grad).float(), bias)

    def assign(self, rows: Rows | None) -> None:
        """Put rows, or None, into `.grad` with the type and memory layout of each parameter."""
        if rows is None:
            self.weight.grad = None
        else:
            self.weight.grad = _like(self.weight, self.kind.unrows(self.module, rows.weight))
        if self.bias is not None:
            self.bias.grad = None if rows is None or rows.bias is None else _like(self.bias, rows.bias.reshape(-1))

    def reorganise(self, output: Tensor) -> Tensor:
        """The output as the predictor sees it, `(out, 1, height, width)`."""
        reorganised = self.kind.reorganise(self.module, output)
        if reorganised.dim() != 4 or reorganised.shape[:2] != (self.out, 1):
            raise ValueError(
                f"layer {self.name!r}: {type(self.kind).__name__}.reorganise gave shape {tuple(reorganised.shape)}; "
                f"expected ({self.out}, 1, height, width), one entry per row of the weight"
            )
        return reorganised


def _like(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    if gradient.dtype == parameter.dtype and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


@dataclass(frozen=True)
class CoverageRow:
    """One module that owns parameters: whether `adagp` supplies its gradient, and if not, why and what to do."""

    layer: str
    kind: str
    parameters: int
    covered: bool
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Which layers are covered, known before training starts."""

    rows: tuple[CoverageRow, ...]

    @property
    def share(self) -> float:
        """Share of the model's parameters whose gradient can be supplied in GP."""
        total = sum(row.parameters for row in self.rows)
        return sum(row.parameters for row in self.rows if row.covered) / total if total else 0.0

    def __str__(self) -> str:
        """A table for people."""
        header = ("layer", "kind", "parameters", "covered", "why")
        cells = [header]
        cells += [
            (row.layer, row.kind, f"{row.parameters:,}", "yes" if row.covered else "no", row.reason)
            for row in self.rows
        ]
        widths = [max(len(line[column]) for line in cells) for column in range(5)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
        ]
        return "\n".join([*lines, f"{self.share:.1%} of the parameters are covered"])


def find_layers(
    model: nn.Module,
    optimized: Iterable[nn.Parameter],
    include: str | None = None,
    exclude: str | None = None,
) -> tuple[list[Layer], Coverage]:
    """Find the layers to cover, and say of every other module with parameters why it is not.

    `include` and `exclude` are regular expressions searched in the layer's name and its class name.
    """
    wanted, unwanted = _pattern("include", include), _pattern("exclude", exclude)
    in_optimizer = {id(parameter) for parameter in optimized}
    owners: dict[int, str] = {}
    functional = {
        id(child)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        for child in module.modules()
        if child is not module
    }
    found: list[Layer] = []
    rows: list[CoverageRow] = []
    matched = False
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        texts = (name, type(module).__name__)
        chosen = wanted is None or any(wanted.search(text) for text in texts)
        dropped = unwanted is not None and any(unwanted.search(text) for text in texts)
        supported = kind_of(module) is not None
        matched = matched or (chosen and supported)
        if supported and (not chosen or dropped):
            reason = f"left out by {'exclude' if dropped else 'include'}"
        elif id(module) in functional:
            reason = "used functionally by MultiheadAttention, its output is never seen: use explicit Linear layers"
        else:
            reason = _uncovered_reason(module, own, in_optimizer, owners)
        count = sum(parameter.numel() for parameter in own.values() if id(parameter) not in owners)
        for key, parameter in own.items():
            owners.setdefault(id(parameter), f"{name}.{key}" if name else key)
        if not reason:
            found.append(_layer(name, module, own))
        rows.append(CoverageRow(name, type(module).__name__, count, not reason, reason))
    for label, pattern, hit in (("include", wanted, matched), ("exclude", unwanted, _any_match(unwanted, rows))):
        if pattern is not None and not hit:
            known = ", ".join(row.layer for row in rows if _covers(row)) or "none"
            raise ValueError(f"{label}={pattern.pattern!r} matches no layer; the model's layers are: {known}")
    return found, Coverage(tuple(rows))


def _any_match(pattern: re.Pattern[str] | None, rows: Iterable[CoverageRow]) -> bool:
    return pattern is not None and any(pattern.search(text) for row in rows for text in (row.layer, row.kind))


def _covers(row: CoverageRow) -> bool:
    return row.covered or row.reason.startswith("left out")


def _pattern(label: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{label}={text!r} is not a regular expression: {error}") from None


def _uncovered_reason(
    module: nn.Module, own: dict[str, nn.Parameter], in_optimizer: set[int], owners: dict[int, str]
) -> str:
    """Why a module is not covered, or an empty string."""
    if kind_of(module) is None:
        return f"no rows for type {type(module).__name__}: gradient None in GP; see `layers.register`"
    weight = own.get("weight")
    if weight is None:
        return "its weight is computed from other parameters (a parametrization): gradient None in GP"
    if isinstance(weight, nn.UninitializedParameter):
        raise ValueError(f"layer {module!r} is lazy and has no shape yet: run one forward before attaching AdaGP")
    if id(weight) in owners:
        return f"weight tied to {owners[id(weight)]}, which supplies the one gradient of both"
    if not weight.requires_grad:
        return "frozen: weight.requires_grad is False"
    if id(weight) not in in_optimizer:
        return "its weight is not in the optimizer"
    return ""


def _layer(name: str, module: nn.Module, own: dict[str, nn.Parameter]) -> Layer:
    kind = kind_of(module)
    assert kind is not None
    weight = own["weight"]
    out, fan_in = kind.rows(module, weight.detach()).shape
    bias = own.get("bias")
    if bias is not None and (not bias.requires_grad or bias.numel() != out):
        bias = None
    return Layer(name, module, kind, weight, bias, out, fan_in)


def uncovered_parameters(model: nn.Module, layers: Iterable[Layer]) -> Iterator[tuple[str, nn.Parameter]]:
    """Trainable parameters that belong to no covered layer, each with the name of the module that owns it."""
    covered = {id(parameter) for layer in layers for parameter in layer.parameters()}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in covered and parameter.requires_grad:
                covered.add(id(parameter))
                yield name, parameter
