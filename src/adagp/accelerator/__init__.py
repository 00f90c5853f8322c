"""The accelerator model: what a layer, a network and a schedule cost on an array of PEs, by formulas."""

from typing import TYPE_CHECKING

from adagp.accelerator.array import DATAFLOWS, Array, PassCost, layer_cost, pass_cost
from adagp.accelerator.designs import Design, Step, batch_steps
from adagp.accelerator.duties import Duty, batch_duties
from adagp.accelerator.energy import COST_TABLES, CostTable, cost_table
from adagp.accelerator.machine import Machine
from adagp.accelerator.networks import CNNS, DATA_SHAPES, IMAGE_SETS, network
from adagp.accelerator.parts import Parts, backward_cycles, forward_cycles, network_parts
from adagp.accelerator.setting import Setting, read_machine
from adagp.accelerator.shapes import Gemm, LayerShape, Pass
from adagp.accelerator.simulation import EPOCH_STEPS, Batch, Run, Simulation, paper_schedule, simulate
from adagp.accelerator.traffic import POLICIES, Policy
from adagp.accelerator.workload import PredictorShape, Work
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
    "POLICIES",
    "Array",
    "Batch",
    "CostTable",
    "Design",
    "Duty",
    "Gemm",
    "LayerShape",
    "Machine",
    "Parts",
    "Pass",
    "PassCost",
    "Policy",
    "PredictorShape",
    "Run",
    "Setting",
    "Simulation",
    "Step",
    "Work",
    "backward_cycles",
    "batch_duties",
    "batch_steps",
    "cost_table",
    "forward_cycles",
    "layer_cost",
    "network",
    "network_parts",
    "paper_schedule",
    "pass_cost",
    "read_machine",
    "simulate",
    "trace",
]

__getattr__ = lazily(__name__, {"trace": "adagp.accelerator.tracing"})
