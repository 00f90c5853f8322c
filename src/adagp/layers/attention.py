"""`nn.MultiheadAttention`: its projections, which are steps of one function and show no output of their own."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

from adagp.layers.kinds import FullyConnected, LayerKind, Part, register

_ARGUMENTS = ("query", "key", "value")


class _Projection(FullyConnected):
    """A part of attention; everything it is shown has the batch first."""

    @staticmethod
    def batch_first(module: nn.Module, tensor: Any) -> Any:
        """`(batch, positions, width)` of a tensor as the module takes it."""
        if not isinstance(tensor, Tensor) or tensor.is_nested:
            return None
        if tensor.dim() == 2:
            return tensor[None]
        return tensor if module.batch_first else tensor.transpose(0, 1)


class InputProjection(_Projection):
    """A projection of queries, keys or values, or of all three in one weight.

    Nobody sees its output. But the mean of an affine map is the map of the mean, so one product with the batch mean of
    the input gives it exactly, at the cost of one sample. A weight for all three is shown the query.
    """

    def __init__(self, weight: str, argument: str) -> None:
        """`weight` is the name of the parameter, `argument` that of the input it projects."""
        self._weight, self._argument = weight, argument

    def shown(
        self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> tuple[Any, Any]:
        """The input, in both places."""
        place = _ARGUMENTS.index(self._argument)
        given = self.batch_first(module, inputs[place] if place < len(inputs) else named.get(self._argument))
        return given, given

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """Project the batch mean of the input: `(batch, positions, in)` becomes `(out, 1, 1, positions)`."""
        weight = cast(Tensor, getattr(module, self._weight)).detach()
        mean = output.mean(0) if len(output) > 1 else output[0]
        return (weight.float() @ mean.float().t())[:, None, None, :]

    def reorganise_input(self, module: nn.Module, layer_input: Tensor) -> Tensor:
        """`(batch, positions, in)` becomes `(in, 1, 1, positions)`."""
        return super().reorganise(module, layer_input)


class OutputProjection(_Projection):
    """The last projection: its output is the module's. Nobody sees its input."""

    def shown(
        self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> tuple[Any, Any]:
        """The first of the module's outputs; the second are attention weights."""
        return None, self.batch_first(module, output[0] if isinstance(output, tuple) else output)


@register(nn.MultiheadAttention)
class Attention(FullyConnected):
    """Attention as its projections: `in_proj`, or `q_proj`, `k_proj` and `v_proj`, and `out_proj`."""

    def parts(self, module: nn.Module) -> Mapping[str, Part] | None:
        """Keys and values of another width have weights of their own."""
        attention = cast(nn.MultiheadAttention, module)
        found: dict[str, Part] = {}
        if attention.in_proj_weight is not None:
            kind: LayerKind = InputProjection("in_proj_weight", "query")
            found["in_proj"] = Part(kind, attention.in_proj_weight, attention.in_proj_bias)
        else:  # their bias is one parameter, and so belongs to none of them
            for short, argument in zip("qkv", _ARGUMENTS, strict=True):
                weight = f"{short}_proj_weight"
                found[f"{short}_proj"] = Part(InputProjection(weight, argument), getattr(attention, weight))
        last = attention.out_proj
        found["out_proj"] = Part(OutputProjection(), cast(nn.Parameter, last.weight), last.bias)
        return found
