"""Kernels: the weight gradient of a convolution from a few output gradients per sample and channel."""

from adagp.kernels.topk import choose_topk, topk_backends, topk_weight_grad

__all__ = ["choose_topk", "topk_backends", "topk_weight_grad"]
