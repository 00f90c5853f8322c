"""The pipeline simulator: what each device does when, in any sequence of phases."""

from adagp.accelerator.pipeline.costs import Costs, costs
from adagp.accelerator.pipeline.order import device_orders
from adagp.accelerator.pipeline.tasks import SCHEMES, Pipeline, Task, phases_of, scales_of
from adagp.accelerator.pipeline.timeline import Slot, Timeline, simulate

__all__ = [
    "SCHEMES",
    "Costs",
    "Pipeline",
    "Slot",
    "Task",
    "Timeline",
    "costs",
    "device_orders",
    "phases_of",
    "scales_of",
    "simulate",
]
