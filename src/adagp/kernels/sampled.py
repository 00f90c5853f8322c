"""The weight gradient from a part of the positions, drawn so that its mean is the exact one.

The exact gradient is a sum over positions: `grad_output` there times the patch of the input there. A position is drawn
with a probability in proportion to the norms of the two, and weighted by one over it. Only what is left of the patches
after the mean input of their sample is sampled; the share of the means needs no positions and stays exact.

The drawn patches are gathered as rows, and one product sums them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from adagp.kernels import sampled_compiled, sampled_portable
from adagp.kernels.geometry import Geometry, check_tensors, geometry
from adagp.kernels.sampling import draw, has_own_means, inclusion_probabilities


@dataclass(frozen=True)
class Sums:
    """The gradients of weight and bias, the latter exact."""

    weight: Tensor
    bias: Tensor


@torch.no_grad()
def sampled_weight_grad(
    input: Tensor,  # noqa: A002
    grad_output: Tensor,
    weight_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    rate: float = 0.25,
    generator: torch.Generator | None = None,
) -> Tensor:
    """An unbiased estimate of the gradient of a Conv2d's weight from a share of the positions.

    Positions of all samples are drawn together, with probabilities in proportion to the norm of `grad_output` times
    that of the input patch less its sample's mean. A rate of 1 gives the exact gradient.

    A Linear is a convolution with a 1 x 1 kernel over `(samples, features, positions, 1)`.

    Args:
        input: `(samples, channels, height, width)`, in any memory layout.
        grad_output: The gradient at the layer's output, with the dtype and device of `input`.
        weight_shape: Output channels, input channels per group, kernel height and width.
        stride: As in `nn.Conv2d`.
        padding: As in `nn.Conv2d`, but a name such as 'same' is refused.
        dilation: As in `nn.Conv2d`.
        groups: As in `nn.Conv2d`.
        rate: The share of the positions that are drawn, above 0 and at most 1.
        generator: On the CPU; one number is drawn from it. None: torch's own.

    Returns:
        The estimate, in the shape of the weight. Its dtype is the input's, or float32 for half precision.
    """
    conv = geometry(weight_shape, stride, padding, dilation, groups)
    check_tensors(input, grad_output, conv)
    require_rate(rate)
    start = float(torch.rand(1, dtype=torch.float64, generator=generator))
    return sampled_sums(input, grad_output, conv, rate, start).weight


def require_rate(rate: float, name: str = "rate") -> None:
    """Refuse a rate that is no share."""
    if isinstance(rate, bool) or not isinstance(rate, float | int) or not 0 < rate <= 1:
        raise ValueError(f"{name} = {rate!r}: it is the share of positions that are drawn, above 0 and at most 1")


def sampled_sums(x: Tensor, grad_output: Tensor, conv: Geometry, rate: float, start: float) -> Sums:
    """The gradients of weight and bias, with the positions drawn by `start`, uniform in [0, 1).

    Where something is not finite the dense gradient is not either, and is given.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    x, grad_output = x.to(dtype), grad_output.to(dtype)
    if rate < 1 and x.shape[0]:
        way = sampled_compiled if x.device.type == "cpu" and not sampled_compiled.why_not() else sampled_portable
        scored = way.score(x, grad_output, conv, has_own_means(grad_output[0, 0].numel(), conv.taps, rate))
        if bool(scored.scores.sum().isfinite()):
            drawn = draw(inclusion_probabilities(scored.scores, rate * len(scored.scores)), start)
            total, drawn_totals = way.sum_rows(x, grad_output, conv, drawn)
            weight = _with_means(total, conv, scored.means, scored.totals - drawn_totals)
            return Sums(weight, scored.totals.sum(0))
    weight = conv2d_weight(x, conv.weight_shape, grad_output, conv.stride, conv.padding, conv.dilation, conv.groups)
    return Sums(weight, grad_output.sum((0, 2, 3)))


def _with_means(weight: Tensor, conv: Geometry, means: Tensor, missing: Tensor) -> Tensor:
    """Add what the draw missed of each sample's total gradient, times its mean input, at every tap."""
    out, fan = conv.weight_shape[:2]
    missing = missing if len(means) == len(missing) else missing.sum(0, keepdim=True)
    grouped = missing.view(-1, conv.groups, out // conv.groups).permute(1, 2, 0)
    added = grouped.bmm(means.view(-1, conv.groups, fan).transpose(0, 1))
    return weight.add_(added.view(out, fan, 1, 1))
