"""A sampled weight gradient whose rows are drawn in the forward, so that only they have to be stored.

`grad_output` is not known then, so rows are drawn by the norm of the input alone, less its mean. That is unbiased too,
and noisier.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from adagp.kernels.products import product
from adagp.kernels.sampling import draw, has_own_means, inclusion_probabilities


@dataclass(frozen=True)
class KeptRows:
    """What is stored of a layer's input.

    Attributes:
        rows: The drawn rows, `(drawn, inputs)`.
        places: Where each of them was, counted over samples and positions.
        weights: One over the probability of each.
        means: The mean row of each sample, or of all of them.
    """

    rows: Tensor
    places: Tensor
    weights: Tensor
    means: Tensor


@torch.no_grad()
def keep_rows(inputs: Tensor, rate: float, start: float) -> KeptRows:
    """Draw a share of the rows of an input, always the same number of them.

    Args:
        inputs: `(samples, *positions, inputs)`, in any memory layout.
        rate: The share of rows.
        start: Uniform in [0, 1).
    """
    sums = torch.promote_types(inputs.dtype, torch.float32)
    positions = tuple(range(1, inputs.dim() - 1))
    count = inputs[..., 0].numel()
    if has_own_means(count // max(len(inputs), 1), 1, rate):
        means = inputs.mean(positions, dtype=sums)
    else:
        means = inputs.mean((0, *positions), dtype=sums)[None]
    shape = (len(means), *(1 for _ in positions), inputs.shape[-1])
    scores = torch.linalg.vector_norm(inputs - means.to(inputs.dtype).view(shape), dim=-1, dtype=sums)
    drawn = draw(inclusion_probabilities(scores.flatten(), max(1, round(rate * count))), start)
    places = torch.unravel_index(drawn.rows, scores.shape)
    return KeptRows(inputs[places], drawn.rows, drawn.weights.to(sums), means)


@torch.no_grad()
def weight_grad_of_kept(kept: KeptRows, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weight, `(out, in)`, and bias, the latter exact.

    Args:
        kept: What was stored.
        grad_output: `(samples, *positions, out)`.
    """
    dtype, out = kept.means.dtype, grad_output.shape[-1]
    grads = grad_output.reshape(-1, out).index_select(0, kept.places).to(dtype).mul_(kept.weights[:, None])
    if len(kept.means) > 1:
        totals = grad_output.flatten(1, -2).sum(1, dtype=dtype)
        owners = kept.places // (grad_output[..., 0].numel() // len(grad_output))
        drawn = torch.zeros_like(totals).index_add_(0, owners, grads)
    else:
        totals = grad_output.reshape(-1, out).sum(0, keepdim=True, dtype=dtype)
        drawn = grads.sum(0, keepdim=True)
    weight = product(grads.t(), kept.rows.to(dtype))
    return weight.addmm_((totals - drawn).t(), kept.means), totals.sum(0)
