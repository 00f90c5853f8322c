"""The plan that pays: for every layer the source whose gradient is worth more than the exact one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adagp.advice.agreement import Agreement
from adagp.advice.layers import LayerTimes
from adagp.advice.result import LayerFinding
from adagp.schedules import Phase, Plan
from adagp.schedules.breakeven import kept_progress, least_cosine, most_added_variance, saved_share
from adagp.schedules.sources import specs
from adagp.schedules.table import to_table


@dataclass(frozen=True)
class _Choice:
    source: str
    worth: float


def judge_layers(times: Sequence[LayerTimes], agreement: Agreement) -> list[LayerFinding]:
    """Where each layer's time goes, and the source that pays for it.

    A layer is judged as a training of its own, on its own three parts of the time: it has to pay for itself. Only
    sources that need `grad_output` are judged, because all others rest a whole batch.
    """
    return [_judge(one, agreement) for one in times]


def _judge(times: LayerTimes, agreement: Agreement) -> LayerFinding:
    best, needs = _Choice("backprop", 1.0), {}
    for name, seconds in times.sources.items():
        saved = saved_share(times.weight_gradient / times.total, seconds / times.weight_gradient)
        needs[name] = _need(name, saved)
        found, variance = agreement.plans[name][times.name], agreement.added_variance(name, times.name)
        kept = kept_progress(found.cosine, variance, specs()[name].unbiased)
        if saved > 0 and kept / (1 - saved) > best.worth:
            best = _Choice(name, kept / (1 - saved))
    spread = agreement.spread.get(times.name)
    return LayerFinding(
        times.name,
        times.kind,
        times.forward,
        times.input_gradient,
        times.weight_gradient,
        None if spread is None else spread.error,
        dict(times.sources),
        needs,
        best.source,
    )


def _need(source: str, saved: float) -> str:
    """What a source would have to reach, in words."""
    if saved <= 0:
        return "not quicker than the exact gradient"
    if specs()[source].unbiased:
        return f"added variance below {most_added_variance(saved):.2f}"
    return f"cosine above {least_cosine(saved):.2f}"


def plan_of(layers: Sequence[LayerFinding]) -> Plan:
    """The plan of every batch: what pays, and `backprop` elsewhere."""
    changed = {layer.name: layer.source for layer in layers if layer.source != "backprop"}
    return Plan(Phase.BP, "backprop", changed, "advised")


def table_of(plan: Plan, layers: Sequence[str], notes: Mapping[str, str]) -> str:
    """The plan as a table of one batch that repeats, with some notes at its head."""
    head = "".join(f"# {name}: {text}\n" for name, text in notes.items())
    return head + to_table(lambda step: plan, layers, 1)
