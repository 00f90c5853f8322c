"""A whole training in a pipeline."""

from collections import Counter
from collections.abc import Sequence

from adagp.accelerator.pipeline.costs import Costs
from adagp.accelerator.pipeline.tasks import Pipeline
from adagp.accelerator.pipeline.timeline import simulate
from adagp.schedules.plan import Phase


def training_steps(scheme: str, devices: int, microbatches: int, phases: Sequence[Phase], costs: Costs) -> float:
    """The steps of many batches, without simulating each one.

    A pipeline is empty after a BP batch: the last backward of every micro-batch is on the first stage, where the next
    batch begins. So each sequence of phases that ends in a BP batch is simulated once, and the steps add up exactly.
    Messages must take no time: Chimera's replicas of a stage exchange some between two batches.
    """
    if costs.communication:
        raise ValueError(f"communication={costs.communication}: only what costs 0 adds up; use simulate")
    runs: Counter[tuple[Phase, ...]] = Counter()
    start = 0
    for place, phase in enumerate(phases, start=1):
        if phase is not Phase.GP or place == len(phases):
            runs[tuple(phases[start:place])] += 1
            start = place
    return sum(
        count * simulate(Pipeline(scheme, devices, microbatches, run), costs).steps for run, count in runs.items()
    )
