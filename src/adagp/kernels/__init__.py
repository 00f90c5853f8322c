"""Kernels: the weight gradient of a convolution from a few of its output gradients."""

from adagp.kernels.sampled import sampled_weight_grad
from adagp.kernels.topk import choose_topk, topk_backends, topk_weight_grad

__all__ = ["choose_topk", "sampled_weight_grad", "topk_backends", "topk_weight_grad"]
