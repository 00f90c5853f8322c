"""The accelerator model: what a layer, a network and a schedule cost on an array of PEs, by formulas."""

from typing import TYPE_CHECKING

from adagp.accelerator.array import DATAFLOWS, Array, PassCost, layer_cost, pass_cost
from adagp.accelerator.array_tasks import ArrayTask, batch_tasks
from adagp.accelerator.designs import Design, Step, batch_steps
from adagp.accelerator.energy import COST_TABLES, CostTable, cost_table
from adagp.accelerator.layer_costs import LayerCosts, backward_cycles, forward_cycles, network_costs
from adagp.accelerator.machine import Machine
from adagp.accelerator.networks import CNNS, DATA_SHAPES, IMAGE_SETS, network
from adagp.accelerator.schedule import EPOCH_STEPS, METHODS, method_schedule, paper_schedule
from adagp.accelerator.setting import Setting, read_machine
from adagp.accelerator.shapes import Gemm, LayerShape, Pass
from adagp.accelerator.simulation import BatchKind, DesignRun, Simulation, batch_kinds, simulate
from adagp.accelerator.traffic import POLICIES, Policy
from adagp.accelerator.workload import LayerOp, PredictorShape
from adagp.lazy import lazily

if TYPE_CHECKING:
    from adagp.accelerator.tracing import trace

__all__ = [
    "CNNS",
    "COST_TABLES",
    "DATAFLOWS",
    "DATA_SHAPES",
    "EPOCH_STEPS",
    "IMAGE_SETS",
    "METHODS",
    "POLICIES",
    "Array",
    "ArrayTask",
    "BatchKind",
    "CostTable",
    "Design",
    "DesignRun",
    "Gemm",
    "LayerCosts",
    "LayerOp",
    "LayerShape",
    "Machine",
    "Pass",
    "PassCost",
    "Policy",
    "PredictorShape",
    "Setting",
    "Simulation",
    "Step",
    "backward_cycles",
    "batch_kinds",
    "batch_steps",
    "batch_tasks",
    "cost_table",
    "forward_cycles",
    "layer_cost",
    "method_schedule",
    "network",
    "network_costs",
    "paper_schedule",
    "pass_cost",
    "read_machine",
    "simulate",
    "trace",
]

__getattr__ = lazily(__name__, {"trace": "adagp.accelerator.tracing"})
