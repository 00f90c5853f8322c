"""What the array does for every product of a network in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from adagp.accelerator.shapes import Pass
from adagp.accelerator.workload import LayerOp
from adagp.schedules import LayerTask, Phase, Plan, ResolvedPlan, resolve
from adagp.schedules.sources import specs


@dataclass(frozen=True)
class ArrayTask:
    """What the array computes for one product in one batch, in addition to its forward.

    Attributes:
        input_grad: Whether it computes the input gradient.
        weight_grad: Whether it computes the true weight gradient.
        update: Whether the weights change.
        predict: Whether the predictor predicts the weight gradient.
        learn: Whether the predictor learns from the true weight gradient.
        forward_only: Whether the batch has no backward, so that its activations are not needed again.
    """

    input_grad: bool = False
    weight_grad: bool = False
    update: bool = False
    predict: bool = False
    learn: bool = False
    forward_only: bool = False


def batch_tasks(ops: Sequence[LayerOp], plan: Plan, learning: bool) -> list[ArrayTask]:
    """What a plan asks of the array for every product.

    The plan is resolved as the engine resolves it. Added is what hardware needs to know: how far back input gradients
    go. They go back to the first product whose true weight gradient is needed. If that is the first product of all and
    it has an input gradient, an embedding before it needs that too. Norms are not modelled.

    Args:
        ops: The network's products.
        plan: The plan of the batch.
        learning: Whether the predictor learns from true gradients.

    Raises:
        ValueError: If a source has no cost on the array.
    """
    _refuse_unmodelled(plan)
    resolved = resolve(plan, [op.name for op in ops if op.covered])
    tasks = []
    needed_before = False  # whether an earlier product needs its true weight gradient
    for op in ops:
        layer_task = resolved.tasks[op.name] if op.covered else None
        weight_grad = Pass.WEIGHT_GRAD in op.passes and _is_exact(op, layer_task, resolved)
        input_grad = Pass.INPUT_GRAD in op.passes and (needed_before or (weight_grad and op is ops[0]))
        if op.kind == "matmul":  # its "weight" is an activation too
            weight_grad = Pass.WEIGHT_GRAD in op.passes and needed_before
            tasks.append(ArrayTask(input_grad, weight_grad, forward_only=plan.phase is Phase.GP))
            continue
        tasks.append(_task(op, layer_task, input_grad, weight_grad, learning, forward_only=plan.phase is Phase.GP))
        needed_before = needed_before or weight_grad
    return tasks


def _is_exact(op: LayerOp, layer_task: LayerTask | None, resolved: ResolvedPlan) -> bool:
    if resolved.plan.phase is Phase.GP:
        return False
    return resolved.trains(op.name) if layer_task is None else layer_task.source.needs_graph


def _task(
    op: LayerOp, layer_task: LayerTask | None, input_grad: bool, weight_grad: bool, learning: bool, forward_only: bool
) -> ArrayTask:
    if layer_task is None:
        return ArrayTask(input_grad, weight_grad, update=op.learns and weight_grad, forward_only=forward_only)
    source = layer_task.source
    learn = learning and layer_task.trains_predictor and weight_grad
    return ArrayTask(
        input_grad=input_grad,
        weight_grad=weight_grad,
        update=op.learns and (weight_grad or (source.updates and not source.needs_graph)),
        predict=source.needs_features or learn,
        learn=learn,
        forward_only=forward_only,
    )


def _refuse_unmodelled(plan: Plan) -> None:
    modelled = sorted(name for name, known in specs().items() if known.on_array)
    unknown = plan.used_sources() - set(modelled)
    if unknown:
        raise ValueError(
            f"source {', '.join(sorted(unknown))}: has no cost on the array; use a schedule with only "
            f"{', '.join(modelled)}"
        )
