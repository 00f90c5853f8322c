"""A whole training in a pipeline."""

from collections import Counter
from collections.abc import Sequence

from adagp.accelerator.pipeline.costs import Costs
from adagp.accelerator.pipeline.tasks import Pipeline
from adagp.accelerator.pipeline.timeline import simulate
from adagp.schedules.plan import Phase


def training_steps(scheme: str, devices: int, microbatches: int, phases: Sequence[Phase], costs: Costs) -> float:
    """The steps of many batches, without simulating each.

    After a BP batch a pipeline is empty: the last backward of every micro-batch is on the first stage, and the next
    batch begins there. So batches up to and with a BP batch are simulated once for each sequence of phases that occurs,
    and their steps add up exactly. Messages between the two holders of a stage would come between: none may take time.
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
