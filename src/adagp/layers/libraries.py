"""Layers of other libraries, registered by their path so that nothing is imported."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

from adagp.layers.kinds import FullyConnected, LayerKind, Part, register


@register("torch_geometric.nn.dense.linear.Linear")
class GraphLinear(FullyConnected):
    """PyG's linear layer; the nodes are its batch."""


@register("transformers.pytorch_utils.Conv1D")
class TransposedLinear(FullyConnected):
    """GPT-2's linear layer, whose weight is `(in, out)`."""

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """One row per output."""
        return weight_like.t()

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Back to `(in, out)`."""
        return rows.t()


class _Expert(LayerKind):
    """One weight of all experts, `(experts, out, in)`: a row per expert and output."""

    def __init__(self, weight: str) -> None:
        """`weight` is the name of the parameter."""
        self._weight = weight

    def rows(self, module: nn.Module, weight_like: Tensor) -> Tensor:
        """Expert after expert."""
        return weight_like.flatten(0, 1)

    def unrows(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Back to `(experts, out, in)`."""
        return rows.reshape(self.parameter(module).shape)

    def parameter(self, module: nn.Module) -> Tensor:
        """The weight itself."""
        return cast(Tensor, getattr(module, self._weight))

    @staticmethod
    def mean(tensor: Tensor) -> Tensor:
        """The mean over all tokens, `(width,)`."""
        return tensor.flatten(0, -2).mean(0)


class ExpertInput(_Expert):
    """The first weight, from a token to gate and hidden units: features are what each expert makes of the mean token.

    All tokens count for every expert, not only those that are routed to it.
    """

    def shown(
        self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> tuple[Any, Any]:
        """The tokens, in both places."""
        tokens = inputs[0] if inputs else named.get("hidden_states")
        return tokens, tokens

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """`(tokens, in)` becomes `(experts x out, 1, 1, 1)`."""
        weight = self.parameter(module).detach().flatten(0, 1)
        return (weight.float() @ self.mean(output).float())[:, None, None, None]

    def reorganise_input(self, module: nn.Module, layer_input: Tensor) -> Tensor:
        """`(tokens, in)` becomes `(in, 1, 1, 1)`."""
        return self.mean(layer_input)[:, None, None, None]


class ExpertOutput(_Expert):
    """The last weight: its outputs, weighted by the router, add up to the module's. Nobody sees its input."""

    def shown(
        self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> tuple[Any, Any]:
        """The module's output."""
        return None, output

    def reorganise(self, module: nn.Module, output: Tensor) -> Tensor:
        """`(tokens, out)` becomes `(experts x out, 1, 1, 1)`: all experts have the same features."""
        return self.mean(output).repeat(len(self.parameter(module)))[:, None, None, None]


@register("transformers.models.*Experts")
class FusedExperts(FullyConnected):
    """The experts of transformers' mixtures (Mixtral, Qwen, DeepSeek and others): each weight holds all experts."""

    def parts(self, module: nn.Module) -> Mapping[str, Part] | None:
        """Nothing where the weights are laid out in another way."""
        up, down = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
        if not (isinstance(up, nn.Parameter) and isinstance(down, nn.Parameter) and up.dim() == down.dim() == 3):
            return {}
        experts, out, hidden = down.shape
        if up.shape != (experts, 2 * hidden, out):
            return {}
        return {
            "gate_up_proj": Part(ExpertInput("gate_up_proj"), up),
            "down_proj": Part(ExpertOutput("down_proj"), down),
        }
