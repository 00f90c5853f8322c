"""Weight gradients from a part of what they are sums of: the largest output gradients, or positions that are drawn."""

from adagp.kernels.sampled import sampled_weight_grad
from adagp.kernels.topk import choose_topk, topk_backends, topk_weight_grad

__all__ = ["choose_topk", "sampled_weight_grad", "topk_backends", "topk_weight_grad"]
