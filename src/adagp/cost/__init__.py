"""Multiply-adds of a model, counted on the meta device: shapes are followed and nothing is computed.

One tracer records every convolution and matrix product of a forward. The cost of plans, the work of a forward and the
accelerator model all read its result.
"""

from adagp.cost.forward import multiply_adds
from adagp.cost.plans import CostModel, LayerCost
from adagp.cost.tracing import Call, Product, Trace, trace_forward

__all__ = ["Call", "CostModel", "LayerCost", "Product", "Trace", "multiply_adds", "trace_forward"]
