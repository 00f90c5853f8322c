"""The kinds of batches that figures distinguish."""

from adagp.schedules import Phase, Plan

BATCH_KINDS = ("WARMUP", "BP", "COARSE", "MIXED", "GP")
"""The phases, `COARSE` for a BP batch of smaller samples, `MIXED` for one in which not every gradient is true."""


def batch_kind(plan: Plan) -> str:
    """The kind of a batch with this plan, one of `BATCH_KINDS`."""
    if plan.phase is Phase.BP and plan.used_sources() != {"backprop"}:
        return "MIXED"
    if plan.phase is Phase.BP and plan.is_coarse:
        return "COARSE"
    return plan.phase.value
