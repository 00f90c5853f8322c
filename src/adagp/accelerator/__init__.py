"""The accelerator model: what a layer, a network and a schedule cost on an array of PEs, by formulas."""

from adagp.accelerator.array import DATAFLOWS, Array, PassCost, layer_cost, pass_cost
from adagp.accelerator.shapes import Gemm, LayerShape, Pass
from adagp.accelerator.workload import PredictorShape, Work, trace

__all__ = [
    "DATAFLOWS",
    "Array",
    "Gemm",
    "LayerShape",
    "Pass",
    "PassCost",
    "PredictorShape",
    "Work",
    "layer_cost",
    "pass_cost",
    "trace",
]
