"""A whole training in a pipeline."""

from collections import Counter
from collections.abc import Sequence

from adagp.accelerator.pipeline.costs import Costs
from adagp.accelerator.pipeline.tasks import Pipeline
from adagp.accelerator.pipeline.timeline import simulate
from adagp.schedules.plan import Phase


def training_steps(
    scheme: str,
    devices: int,
    microbatches: int,
    phases: Sequence[Phase],
    costs: Costs,
    scales: Sequence[float] = (),
) -> float:
    """The steps of many batches, without simulating each one.

    A pipeline is empty after a BP batch: the last backward of every micro-batch is on the first stage, where the next
    batch begins. So each sequence of phases that ends in a BP batch is simulated once, and the steps add up exactly.
    Messages must take no time: Chimera's replicas of a stage exchange some between two batches.

    Args:
        scheme: `gpipe`, `dapple` or `chimera`.
        devices: The number of devices.
        microbatches: Micro-batches per batch.
        phases: The phase of each batch, from `phases_of`.
        costs: How long each stage takes.
        scales: The scale of each batch, from `scales_of`; empty where all are full.
    """
    if scheme in ("zero-bubble", "local"):
        raise ValueError(
            f"scheme={scheme!r}: its stages do not end a batch in order, so steps do not add up; use simulate"
        )
    if costs.communication:
        raise ValueError(f"communication={costs.communication}: only what costs 0 adds up; use simulate")
    if scales and len(scales) != len(phases):
        raise ValueError(f"scales: {len(scales)} for {len(phases)} phases; give one for each, or none")
    runs: Counter[tuple[tuple[Phase, ...], tuple[float, ...]]] = Counter()
    start = 0
    for place, phase in enumerate(phases, start=1):
        if phase is not Phase.GP or place == len(phases):
            runs[tuple(phases[start:place]), tuple(scales[start:place])] += 1
            start = place
    return sum(
        count * simulate(Pipeline(scheme, devices, microbatches, *run), costs).steps for run, count in runs.items()
    )
