"""Coverage: which modules of a model are covered layers, and of every other one why it is not."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from adagp.layers.kinds import Layer, LayerKind, kind_of
from adagp.layers.sharding import is_distributed, own_rows, reason_without_rows


@dataclass(frozen=True)
class CoverageRow:
    """One module that owns parameters: whether `adagp` supplies its gradient, and if not, why and what to do.

    Attributes:
        layer: The module's name; of a module with several weights, that of one of them, such as `attention.in_proj`.
        kind: Its class.
        parameters: How many it owns; a parameter that several modules own counts once.
        covered: Whether a source can supply its weight gradient now.
        reason: Why not, and what to do; empty where it is covered.
        trained: How many of its parameters are trained now: the optimizer holds them and they require grad.
        supplied: How many of those a source can supply.
    """

    layer: str
    kind: str
    parameters: int
    covered: bool
    reason: str
    trained: int
    supplied: int


@dataclass(frozen=True)
class Coverage:
    """Which layers are covered at present.

    Attributes:
        rows: Every module that owns parameters.
        note: What the predictor leaves out of this model, and why; empty where it leaves out nothing.
    """

    rows: tuple[CoverageRow, ...]
    note: str = ""

    @property
    def share(self) -> float:
        """Share of the trained parameters whose gradient can be supplied in GP."""
        trained = sum(row.trained for row in self.rows)
        return sum(row.supplied for row in self.rows) / trained if trained else 0.0

    def largest_gaps(self, most: int = 3) -> list[CoverageRow]:
        """The modules with the most trained parameters that no source can supply, largest first."""
        gaps = [row for row in self.rows if row.trained > row.supplied]
        return sorted(gaps, key=lambda row: row.supplied - row.trained)[:most]

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
        lines.append(f"{self.share:.1%} of the trained parameters are covered")
        return "\n".join([*lines, self.note] if self.note else lines)


def find_layers(
    model: nn.Module,
    optimized: Iterable[nn.Parameter],
    include: str | None = None,
    exclude: str | None = None,
) -> tuple[list[Layer], dict[str, str]]:
    """Find the layers to cover, and say of every other module with parameters why it is not.

    A frozen layer is found too if the optimizer holds its weight: it may be unfrozen later. `include` and `exclude`
    are regular expressions searched in the layer's name and its class name.

    Returns:
        The layers, and for every module that owns parameters the reason why it is not covered (empty for layers).
    """
    choice = _Choice(_pattern("include", include), _pattern("exclude", exclude))
    optimized = list(optimized)
    in_optimizer = {id(parameter) for parameter in optimized}
    is_sharded = any(map(is_distributed, optimized))
    functional = _used_functionally(model)
    suppliers: dict[int, str] = {}  # which layer supplies a parameter's gradient
    reasons: dict[str, str] = {}
    found: list[Layer] = []
    for owner in _owners(model):
        name = owner.name
        reason = choice.reason(owner)
        if not reason and id(owner.module) in functional:
            reason = "used functionally by MultiheadAttention, its output is never seen: use explicit Linear layers"
        reason = reason or _uncovered_reason(owner, in_optimizer, suppliers)
        reason = reason or (_unsharded_reason(owner) if is_sharded else "")
        reasons[name] = reason
        if not reason:
            layer = _layer(owner, in_optimizer - suppliers.keys())
            found.append(layer)
            suppliers.update({id(parameter): name for parameter in layer.parameters()})
    choice.refuse_without_effect([name for name, reason in reasons.items() if not reason or "left out" in reason])
    return found, reasons


def present_coverage(
    model: nn.Module, optimized: Iterable[nn.Parameter], layers: Iterable[Layer], reasons: Mapping[str, str]
) -> Coverage:
    """The coverage as things are now: what is frozen, and what the optimizer holds, may have changed since attaching.

    Args:
        model: The model.
        optimized: What the optimizer holds now.
        layers: The layers that were found.
        reasons: Why every other module is not covered; see `find_layers`.
    """
    by_name = {layer.name: layer for layer in layers}
    suppliers = {id(part): layer.name for layer in by_name.values() for part in layer.parameters()}
    held = {id(parameter) for parameter in optimized}
    counted: set[int] = set()
    rows = []
    for name, module, own, kind, _ in _owners(model):
        layer, reason = by_name.get(name), reasons[name]
        if layer is not None and not layer.weight.requires_grad:
            reason = "frozen: weight.requires_grad is False"
        if reason == _NOT_OPTIMIZED and id(own["weight"]) in held:
            reason = "its weight joined the optimizer after AdaGP was attached: attach it again to cover it"
        mine = []
        for key, parameter in own.items():
            supplier = suppliers.get(id(parameter), name)
            if supplier == name and id(parameter) not in counted:
                counted.add(id(parameter))
                mine.append(parameter)
            elif key == "weight" and supplier != name and kind is None:
                reason = _tied(supplier)
        trained = [part for part in mine if part.requires_grad and id(part) in held]
        supplied = [part for part in trained if not reason and id(part) in suppliers]
        rows.append(
            CoverageRow(
                name, type(module).__name__, _count(mine), not reason, reason, _count(trained), _count(supplied)
            )
        )
    return Coverage(tuple(rows))


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def layer_names(model: nn.Module, include: str | None = None, exclude: str | None = None) -> list[str]:
    """The layers that `AdaGP` covers when the optimizer holds all parameters, in the order of registration."""
    return [layer.name for layer in find_layers(model, model.parameters(), include, exclude)[0]]


def owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module that owns parameters, covered or not, in the order of registration.

    A module with several weights that are layers by themselves comes once for each, under the layer's name.
    """
    return ((owner.name, owner.module) for owner in _owners(model))


def sharing_modules(model: nn.Module) -> dict[str, list[str]]:
    """For every module that owns parameters, the others that own one of the same."""
    by_parameter: dict[int, list[str]] = {}
    for owner in _owners(model):
        for parameter in owner.own.values():
            by_parameter.setdefault(id(parameter), []).append(owner.name)
    return {
        owner.name: [
            other for parameter in owner.own.values() for other in by_parameter[id(parameter)] if other != owner.name
        ]
        for owner in _owners(model)
    }


def parts_by_weight(model: nn.Module) -> dict[str, str]:
    """The names of the layers that are parts of a module, by the name of their weight."""
    parts = {id(owner.own["weight"]): owner.name for owner in _owners(model) if owner.is_part}
    return {name: parts[id(weight)] for name, weight in model.named_parameters() if id(weight) in parts}


class _Owner(NamedTuple):
    """A module that owns parameters, or one of its parts.

    Attributes:
        name: Its name.
        module: The module whose call shows it.
        own: Its parameters; the weight of a part is `weight`, its bias `bias`.
        kind: How its weight is seen as rows; None if it is not.
        is_part: Whether it is one of several weights of the module.
    """

    name: str
    module: nn.Module
    own: dict[str, nn.Parameter]
    kind: LayerKind | None
    is_part: bool = False


def _owners(model: nn.Module) -> Iterator[_Owner]:
    """Every module that owns parameters, and every part of a module that has several layers, with those parameters."""
    in_parts: set[tuple[int, int]] = set()  # parameters of parts, by the module that is called and themselves
    callers: dict[int, int] = {}  # modules inside of one with parts, by that one
    for name, module in model.named_modules():
        kind = kind_of(module)
        parts = None if kind is None else kind.parts(module)
        for short, part in (parts or {}).items():
            if not isinstance(part.weight, nn.Parameter):  # computed by a parametrization
                continue
            own = {"weight": part.weight} | ({} if part.bias is None else {"bias": part.bias})
            in_parts |= {(id(module), id(parameter)) for parameter in own.values()}
            yield _Owner(f"{name}.{short}" if name else short, module, own, part.kind, is_part=True)
        if parts:
            callers |= {id(child): id(module) for child in module.modules()}
        rest = {
            key: parameter
            for key, parameter in module.named_parameters(recurse=False)
            if (callers.get(id(module)), id(parameter)) not in in_parts
        }
        if rest:
            yield _Owner(name, module, rest, None if parts is not None else kind)


class _Choice:
    """The user's regular expressions, and whether each of them matched anything."""

    def __init__(self, include: re.Pattern[str] | None, exclude: re.Pattern[str] | None) -> None:
        self._patterns = {"include": include, "exclude": exclude}
        self._matched: set[str] = set()

    def reason(self, owner: _Owner) -> str:
        """Why the user does not want this module covered, or an empty string."""
        if owner.kind is None:
            return ""
        hits = {
            label
            for label, pattern in self._patterns.items()
            if pattern is not None and (pattern.search(owner.name) or pattern.search(type(owner.module).__name__))
        }
        self._matched |= hits
        if "exclude" in hits:
            return "left out by exclude"
        return "left out by include" if self._patterns["include"] is not None and "include" not in hits else ""

    def refuse_without_effect(self, known: list[str]) -> None:
        """A pattern that matches no layer is a mistake."""
        for label, pattern in self._patterns.items():
            if pattern is not None and label not in self._matched:
                names = ", ".join(known) or "none"
                raise ValueError(f"{label}={pattern.pattern!r} matches no layer; the model's layers are: {names}")


def _pattern(label: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{label}={text!r} is not a regular expression: {error}") from None


def _used_functionally(model: nn.Module) -> set[int]:
    """Modules inside `nn.MultiheadAttention`, whose weights are used without calling them."""
    return {
        id(child)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        for child in module.modules()
        if child is not module
    }


def _uncovered_reason(owner: _Owner, in_optimizer: set[int], suppliers: dict[int, str]) -> str:
    """Why a module is not covered, or an empty string."""
    module = owner.module
    if owner.kind is None:
        return f"no rows for type {_type_name(type(module))}: gradient None in GP; see `layers.register`"
    weight = owner.own.get("weight")
    if weight is None:
        return "its weight is computed from other parameters (a parametrization): gradient None in GP"
    if isinstance(weight, nn.UninitializedParameter):
        raise ValueError(f"layer {module!r} is lazy and has no shape yet: run one forward before attaching AdaGP")
    if id(weight) in suppliers:
        return _tied(suppliers[id(weight)])
    if weight.numel() == 0:
        return "its weight has no entries"
    return "" if id(weight) in in_optimizer else _NOT_OPTIMIZED


def _unsharded_reason(owner: _Owner) -> str:
    """Why the rows of a module are not spread over ranks as those of others are, or an empty string."""
    weight, bias = owner.own["weight"], owner.own.get("bias")
    if not is_distributed(weight):
        return "its weight is not sharded, and those of other layers are: put it into fully_shard too"
    if owner.is_part or not vars(type(owner.kind)).get("rows_come_first", False):  # a subclass must say so itself
        return "its weight is sharded by its first dimension, which is not its rows: gradient None in GP"
    return reason_without_rows(weight, bias)


_NOT_OPTIMIZED = "its weight is not in the optimizer"


def _tied(supplier: str) -> str:
    return f"weight tied to {supplier}.weight, which supplies the one gradient of both"


def _type_name(kind: type[nn.Module]) -> str:
    """The class, with its module unless it is torch's own: other libraries have a `Linear` too."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    return kind.__qualname__ if path.startswith("torch.nn.") else path


def _layer(owner: _Owner, free: set[int]) -> Layer:
    """The layer of a module; its bias belongs to it only where the optimizer has it and no other layer supplies it."""
    assert owner.kind is not None
    weight, bias = owner.own["weight"], owner.own.get("bias")
    if is_distributed(weight):
        kind, own = owner.kind, own_rows(weight)
        out, fan_in = weight.shape[0], weight.numel() // weight.shape[0]
    else:
        kind, own = owner.kind.suited(weight), None
        out, fan_in = kind.rows(owner.module, weight.detach()).shape
    if bias is not None and (bias.numel() != out or id(bias) not in free):
        bias = None
    return Layer(owner.name, owner.module, kind, weight, bias, out, fan_in, owner.is_part, own)


def shared_layers(model: nn.Module, layers: Iterable[Layer]) -> list[str]:
    """The names of the covered layers that have a parameter which another module owns too."""
    count = Counter(id(parameter) for owner in _owners(model) for parameter in owner.own.values())
    return [layer.name for layer in layers if any(count[id(parameter)] > 1 for parameter in layer.parameters())]


def uncovered_parameters(model: nn.Module, layers: Iterable[Layer]) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that belong to no covered layer, each with the name of the module that owns it."""
    covered = {id(parameter) for layer in layers for parameter in layer.parameters()}
    for owner in _owners(model):
        for parameter in owner.own.values():
            if id(parameter) not in covered:
                covered.add(id(parameter))
                yield owner.name, parameter
