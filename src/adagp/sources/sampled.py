"""The weight gradient from a part of the positions, without bias."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from adagp.defaults import SAMPLED_RATE
from adagp.kernels.kept import KeptRows, keep_rows, weight_grad_of_kept
from adagp.kernels.sampled import require_rate, sampled_sums
from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.schedules import Plan, Trial
from adagp.sources.registry import supplies
from adagp.sources.source import Source
from adagp.sources.trying import seen_by_kernel, try_rates

_SERVED = (nn.Conv1d, nn.Conv2d, nn.Linear)


@supplies("sampled")
class Sampled(Source):
    """An unbiased estimate from a share of the positions, those that matter most being drawn most often.

    The gradients of the bias and of the input are exact. A loss that contains gradients (`create_graph`) is not
    served: what reaches the weight by the second derivative is left out.
    """

    def __init__(
        self,
        rate: float = SAMPLED_RATE,
        rates: Mapping[str, float] | None = None,
        keep: str = "input",
        seed: int = 0,
    ) -> None:
        """Set the share of positions that are drawn.

        Args:
            rate: For layers that neither `rates` nor the plan name; 1 gives the exact gradient.
            rates: By layer. A plan that names a layer goes before.
            keep: `input` keeps the whole input from the forward to the backward. `rows` draws in the forward, by the
                size of the input alone, and keeps only the rows that were drawn, for Linear and 1 x 1 convolutions.
                That saves memory and adds noise.
            seed: Of the generator that draws, the same on all ranks.
        """
        require_rate(rate)
        for layer, own in (rates or {}).items():
            require_rate(own, f"rates[{layer!r}]")
        if keep not in ("input", "rows"):
            raise ValueError(f"keep = {keep!r}: it is 'input' or 'rows'")
        self._rate, self._rates, self._seed = float(rate), dict(rates or {}), seed
        self.keeps_less = keep == "rows"
        self._shared = WeakTensorKeyDictionary()  # what was kept of an input, for the next layer that has the same one
        self._plan: Plan | None = None
        self._trials: dict[str, Trial] = {}
        self._previous: dict[str, Tensor] = {}  # the exact gradients of the last batch, while rates are tried
        self._generator = torch.Generator().manual_seed(seed)

    def options(self) -> str:
        """The rates, the seed, and what is kept."""
        rates = "".join(f", {layer}: {rate}" for layer, rate in sorted(self._rates.items()))
        keep = ", keep=rows" if self.keeps_less else ""
        return f"(rate={self._rate}{rates}{keep}, seed={self._seed})"

    def attach(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        """Refuse rates of layers that are not there."""
        unknown = sorted(self._rates.keys() - {layer.name for layer in layers})
        if unknown:
            known = ", ".join(layer.name for layer in layers)
            raise ValueError(f"rates of sampled name {unknown}, which are not covered layers; those are: {known}")
        if self.keeps_less and not any(_has_rows(layer.module) for layer in layers):
            raise ValueError(
                "keep = 'rows': no covered layer is Linear or a 1 x 1 convolution, without padding and groups, so none "
                "could keep rows: use keep='input'"
            )

    def refuse(self, layer: Layer) -> str:
        """Only layers that slide one weight over positions can be served, and only if they compute what torch's do."""
        kind = type(layer.module)
        if kind.forward in {served.forward for served in _SERVED}:
            return ""
        own = " with a forward of its own" if isinstance(layer.module, _SERVED) else ""
        return (
            f"sampled serves Conv1d, Conv2d and Linear, and layer {layer.name!r} is {kind.__name__}{own}: give it "
            "another source"
        )

    def begin(self, plan: Plan) -> None:
        """Take the rates of a batch from its plan."""
        self._plan = plan
        self._shared.clear()
        if not plan.trial_rates:
            self._previous.clear()

    def rate(self, layer: str) -> float:
        """The share of a layer's positions that are drawn in this batch."""
        planned = {} if self._plan is None else self._plan.rates
        return planned.get(layer, self._rates.get(layer, self._rate))

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """What `receive` put into `.grad`."""
        return layer.gradient()

    def keep(self, layer: Layer, layer_input: Tensor) -> tuple[Tensor, ...]:
        """The input, or the rows of it that are drawn now; layers with the same input share them."""
        tries = self._plan is not None and bool(self._plan.trial_rates)
        inputs, rate = None if tries else self._rows_to_keep(layer, layer_input), self.rate(layer.name)
        if inputs is None or rate == 1:
            return (layer_input,)
        form = (rate, layer_input._version, inputs.shape, inputs.stride())
        known_form, kept = self._shared.get(layer_input, (None, None))
        if form != known_form:
            kept = keep_rows(inputs, rate, self._start())
            self._shared[layer_input] = form, kept
        return kept.rows, kept.places, kept.weights, kept.means

    def _rows_to_keep(self, layer: Layer, layer_input: Tensor) -> Tensor | None:
        inputs = _rows_of_input(layer.module, layer_input) if self.keeps_less else None
        return None if inputs is None or not inputs.numel() else inputs

    def receive_kept(self, layer: Layer, kept: tuple[Tensor, ...], grad_output: Tensor) -> None:
        """Add the estimate from the rows that were drawn in the forward, if they were."""
        if len(kept) == 1:
            self.receive(layer, kept[0], grad_output)
            return
        weight, bias = weight_grad_of_kept(KeptRows(*kept), _rows_of_output(layer.weight.dim(), grad_output))
        layer.add_gradient(weight.view(layer.weight.shape), None if layer.bias is None else bias)

    def receive(self, layer: Layer, layer_input: Tensor, grad_output: Tensor) -> None:
        """Add the estimate of the weight gradient, and the exact bias gradient."""
        if self._plan is not None and self._plan.trial_rates:
            self._try(layer, layer_input, grad_output, self._plan.trial_rates)
            return
        found = sampled_sums(*seen_by_kernel(layer, layer_input, grad_output), self.rate(layer.name), self._start())
        layer.add_gradient(found.weight.view(layer.weight.shape), None if layer.bias is None else found.bias)

    def _start(self) -> float:
        return float(torch.rand(1, dtype=torch.float64, generator=self._generator))

    def _try(self, layer: Layer, layer_input: Tensor, grad_output: Tensor, rates: Sequence[float]) -> None:
        """Give the exact gradient, and see what sampling would have given."""

        def sample(rate: float) -> Tensor:
            inputs = self._rows_to_keep(layer, layer_input)
            if inputs is None:
                return sampled_sums(*seen_by_kernel(layer, layer_input, grad_output), rate, self._start()).weight
            kept = keep_rows(inputs, rate, self._start())
            return weight_grad_of_kept(kept, _rows_of_output(layer.weight.dim(), grad_output))[0]

        tried = try_rates(layer, layer_input, grad_output, rates, sample, self._previous.get(layer.name))
        known = self._trials.get(layer.name)
        self._trials[layer.name] = tried.trial if known is None else known + tried.trial
        self._previous[layer.name] = tried.exact.weight
        layer.add_gradient(tried.exact.weight.clone(), None if layer.bias is None else tried.exact.bias)

    def take_trials(self) -> dict[str, Trial]:
        """What was tried in the batch that is over."""
        found, self._trials = self._trials, {}
        return found

    def state_dict(self) -> dict[str, Any]:
        """The generator's state, and the last exact gradients while rates are tried."""
        return {"generator": self._generator.get_state(), "previous": dict(self._previous)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing where the saved source would have."""
        self._generator.set_state(state["generator"])
        self._previous = dict(state["previous"])


def _has_rows(module: nn.Module) -> bool:
    """Whether each output is computed from one row of the input: patches that overlap have none."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return isinstance(module, nn.Linear)
    padded = module.padding != "valid" if isinstance(module.padding, str) else any(module.padding)
    return all(extent == 1 for extent in module.kernel_size) and not padded and module.groups == 1


def _rows_of_input(module: nn.Module, layer_input: Tensor) -> Tensor | None:
    """The input as `(samples, *positions, inputs)`, one row for each output; None where patches overlap."""
    if not _has_rows(module):
        return None
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return _rows_of_output(2, layer_input)
    rows = _rows_of_output(module.weight.dim(), layer_input)
    if isinstance(module, nn.Conv1d):
        return rows[:, :: module.stride[0]]
    return rows[:, :: module.stride[0], :: module.stride[1]]


def _rows_of_output(weight_dims: int, output: Tensor) -> Tensor:
    """An output, or its gradient, as `(samples, *positions, outputs)`: of a Linear, or of a convolution."""
    least = 2 if weight_dims == 2 else weight_dims
    batched = output if output.dim() >= least else output[None]
    return batched if weight_dims == 2 else batched.movedim(1, -1)
