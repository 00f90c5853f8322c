"""What a plan asks of every layer of a network in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.accelerator.shapes import Pass
from adagp.accelerator.workload import Work
from adagp.schedules import Phase, Plan, resolve
from adagp.schedules.sources import spec, specs


@dataclass(frozen=True)
class Duty:
    """Of one layer in one batch, beside its forward.

    Attributes:
        input_grad: Pass the error on.
        weight_grad: Compute the true gradient.
        update: Change the weights.
        predict: Let the predictor make this layer's gradient.
        learn: Let the predictor learn from the true one.
        forward_only: The batch has no backward, so that nothing of its forward is needed again.
    """

    input_grad: bool = False
    weight_grad: bool = False
    update: bool = False
    predict: bool = False
    learn: bool = False
    forward_only: bool = False


def batch_duties(works: Sequence[Work], plan: Plan, learning: bool) -> list[Duty]:
    """What a plan asks of every layer.

    The error goes back to the first layer whose true gradient is wanted, or beyond it to what that layer stands behind
    (an embedding); norms are not looked at. In a GP batch there is no backward at all.

    Args:
        works: The network.
        plan: Of the batch.
        learning: Whether the predictor learns where there is a true gradient.

    Raises:
        ValueError: for a source that has no cost here.
    """
    modelled = sorted(name for name, known in specs().items() if known.on_array)
    unknown = plan.used_sources() - set(modelled)
    if unknown:
        raise ValueError(
            f"source {', '.join(sorted(unknown))}: has no cost on the array; use a schedule with none but "
            f"{', '.join(modelled)}"
        )
    tasks = resolve(plan, [work.name for work in works if work.covered], has_predictor=True).tasks
    found = []
    forward_only = plan.phase is Phase.GP
    reached = False  # whether a layer before this one waits for the error
    for work in works:
        source = tasks[work.name].source if work.covered else spec(plan.source_of_uncovered(work.name))
        wanted = source.needs_graph and not forward_only and Pass.WEIGHT_GRAD in work.passes
        error = Pass.INPUT_GRAD in work.passes and (reached or (wanted and work is works[0]))
        if work.kind == "matmul":  # its second operand is an activation as well: it waits for its error, or nobody does
            both = reached and Pass.WEIGHT_GRAD in work.passes
            found.append(Duty(input_grad=error, weight_grad=both, forward_only=forward_only))
            continue
        found.append(
            Duty(
                input_grad=error,
                weight_grad=wanted,
                update=work.learns and (wanted or (source.updates and not source.needs_graph)),
                predict=work.covered and (source.needs_output or (wanted and learning)),
                learn=work.covered and wanted and learning,
                forward_only=forward_only,
            )
        )
        reached = reached or wanted
    return found
