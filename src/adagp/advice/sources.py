"""What sources and coarse batches would give this model: time, memory, and agreement with the exact gradient."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adagp.advice.agreement import Agreement, Sums, compare, total
from adagp.advice.attached import BP, COARSE_SCALE, Attached, attached
from adagp.advice.budget import SOURCES, Budget
from adagp.advice.exact_study import NO_TIME
from adagp.advice.layers import layer_times
from adagp.advice.messages import own_clock, same_on_all
from adagp.advice.option import Option
from adagp.advice.plan import judge_layers, plan_of, table_of
from adagp.advice.result import LayerFinding, PlanFinding, SourceFinding
from adagp.advice.rounds import Candidate, Clock, Rounds, measure
from adagp.advice.subject import Subject
from adagp.measure import peak_bytes
from adagp.schedules import COARSE, Phase, Plan
from adagp.schedules.breakeven import kept_progress
from adagp.schedules.sources import specs

WARMUP_BATCHES = 12
"""Batches at the user's own learning rate before gradients are compared, if there is time for them."""
# Time of the study in batches as they are: warm-up and layers, and for each plan two gradients, four turns, memory.
_FIXED_BATCHES, _PLAN_BATCHES = 10.0, 7.5
NO_OTHER_BATCH = "it can only be judged on other batches than those it learned from; give a loader"
NO_MIXING = "the model's DistributedDataParallel waits for every gradient; build it with find_unused_parameters=True"
NO_LAYER = "it can serve no layer of this model"
SAME_DIRECTION = "successive gradients still point the same way, which a larger learning rate would use at no cost"
# Ends of the parts, as shares of the time that is left.
_WARMUP_ENDS, _LAYERS_END, _AGREEMENT_ENDS = 0.2, 0.35, 0.55
# These do not need the batch: they are no gradients of it, but what stands in for one; or are of another loss.
_LEFT_OUT = ("backprop", "skip", "random", "local")
OTHER_LOSS = "its parts learn from losses of their own, which no single batch can judge; use `adagp compare`"
PLAIN, PLAN = "plain", "the plan"
PLAN_CODE = (
    "import pathlib, adagp",
    "from adagp import schedules",
    'schedule = schedules.from_table(pathlib.Path("plan.txt").read_text(), schedules.layer_names(model))  # --plan',
    "gp = adagp.AdaGP(model, optimizer, schedule)",
    "loss = gp.step(lambda: criterion(model(x), y))",
)


@dataclass(frozen=True)
class SourceStudy:
    """What was found out about sources, layers, the plan that pays, and how far batches differ."""

    sources: tuple[SourceFinding, ...] = ()
    layers: tuple[LayerFinding, ...] = ()
    plan: PlanFinding | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)
    spread: float | None = None


def study_sources(subject: Subject, budget: Budget, batch_seconds: float) -> SourceStudy:
    """Attach `AdaGP`, warm up, compare gradients, and measure the time of each source.

    Args:
        subject: The training.
        budget: Its time; what there is no time for is not begun.
        batch_seconds: Of a batch as it is.

    Raises:
        ValueError: When `AdaGP` cannot be attached to the model, with the reason.
    """
    left = max(budget.left(SOURCES), 0.0)
    if left < batches_for(1) * batch_seconds:
        return SourceStudy(not_measured={"sources": NO_TIME})
    until = _deadlines(budget, left)
    with attached(subject) as engine:
        possible = _plans(engine)
        plans, not_measured = _affordable(possible, subject, left / batch_seconds)
        not_measured |= _never_judged(engine, possible)
        if not plans:
            return SourceStudy(not_measured=not_measured)
        _warm_up(engine, until(_WARMUP_ENDS))
        with subject.resting():
            layers, agreement, plan = _judge(engine, plans, budget.clock, until)
            if plan.overrides:
                plans[PLAN] = plan
                agreement.plans |= compare(engine, {PLAN: plan}, until(_AGREEMENT_ENDS)).plans
            rounds = _measure(engine, plans, budget)
            plans = {name: one for name, one in plans.items() if name not in rounds.not_measured}
            options = {name: _option(engine, name, one, rounds, agreement) for name, one in plans.items()}
            sent = {name: engine.sent_bytes(one) for name, one in plans.items()}
        names = [layer.name for layer in engine.layers]
    sources = tuple(_finding(name, options[name], agreement, sent[name]) for name in plans if name != PLAN)
    found = _plan(plan, names, options, agreement)
    return SourceStudy(sources, tuple(layers), found, not_measured | rounds.not_measured, agreement.total_spread)


def _never_judged(engine: Attached, possible: Mapping[str, Plan]) -> dict[str, str]:
    """Sources that this model or its wrapper does not allow, or no single batch can judge, each with the reason."""
    mixed = [name for name, spec in specs().items() if _mixes(name, spec.needs_backward) and name not in possible]
    return {**dict.fromkeys(mixed, NO_LAYER if engine.mixes_sources else NO_MIXING), "local": OTHER_LOSS}


def _deadlines(budget: Budget, left: float) -> Callable[[float], Callable[[], bool]]:
    """For a share of the seconds that are left: a function that says whether it is over."""
    begin, tick = budget.clock(), budget.tick(SOURCES.name)

    def until(share: float) -> Callable[[], bool]:
        def is_over() -> bool:
            tick()
            return budget.clock() > begin + share * left

        return is_over

    return until


def _judge(
    engine: Attached, plans: Mapping[str, Plan], clock: Clock, until: Callable[[float], Callable[[], bool]]
) -> tuple[list[LayerFinding], Agreement, Plan]:
    """The time of each layer, the agreement of each plan with the exact gradient, and the plan that follows."""
    received = {name: engine.gp.sources[name] for name in plans if _receives(name)}
    times = layer_times(engine.subject, engine.layers, received, own_clock(clock), until(_LAYERS_END))
    agreement = compare(engine, plans, until(_AGREEMENT_ENDS))
    layers = same_on_all(clock, judge_layers(times, agreement))
    return layers, agreement, plan_of(layers)


def _measure(engine: Attached, plans: Mapping[str, Plan], budget: Budget) -> Rounds:
    """The time of a batch under each plan, in turn with one as it is."""
    share = (SOURCES.end - SOURCES.begin) * (1 - _AGREEMENT_ENDS)
    tick = budget.tick(SOURCES.name)
    return measure(_candidates(engine, plans), budget.clock, budget.deadline(SOURCES), tick=tick, share=share)


def batches_for(plans: int) -> float:
    """The time that some plans take, in batches as they are."""
    return _FIXED_BATCHES + plans * _PLAN_BATCHES


def _affordable(plans: dict[str, Plan], subject: Subject, batches: float) -> tuple[dict[str, Plan], dict[str, str]]:
    """The plans that can be judged in the time of some batches, and for each of the others why it cannot."""
    reasons = {}
    if len(subject.batches) == 1:
        reasons = dict.fromkeys(filter(_learns, plans), NO_OTHER_BATCH)
    left = [name for name in plans if name not in reasons]
    count = max(int((batches - _FIXED_BATCHES) / _PLAN_BATCHES), 0)
    reasons |= dict.fromkeys(left[count:], NO_TIME)
    return {name: plan for name, plan in plans.items() if name not in reasons}, reasons


def _mixes(name: str, needs_backward: bool) -> bool:
    """Whether the batches of a source have a backward that leaves layers out."""
    return needs_backward and name not in _LEFT_OUT


def _learns(name: str) -> bool:
    """Whether a source knows something of the batches before this one."""
    return name in specs() and (specs()[name].remembers or specs()[name].needs_features)


def _receives(name: str) -> bool:
    return name in specs() and specs()[name].needs_grad_output


def _warm_up(engine: Attached, is_over: Callable[[], bool]) -> None:
    """Train a little at the user's own rate: predictors and memories need true gradients, and first weights mislead."""
    for index in range(WARMUP_BATCHES):
        if index > 1 and is_over():
            return
        engine.step(BP, index % max(engine.subject.first_unseen, 1))


def _plans(engine: Attached) -> dict[str, Plan]:
    """The plans to judge, by name, those that are most likely to pay first."""
    found: dict[str, Plan | None] = {}
    if engine.takes(COARSE_SCALE):
        found[COARSE] = Plan(Phase.BP, "backprop", scale=COARSE_SCALE)
    names = [name for name in specs() if name not in _LEFT_OUT]
    found |= {name: engine.plan_of(name) for name in sorted(names, key=lambda name: not specs()[name].needs_backward)}
    return {name: plan for name, plan in found.items() if plan is not None}


def _candidates(engine: Attached, plans: Mapping[str, Plan]) -> list[Candidate]:
    def doing(plan: Plan) -> Callable[[], None]:
        return lambda: engine.step(plan)

    return [Candidate(PLAIN, engine.subject.step), *(Candidate(name, doing(plan)) for name, plan in plans.items())]


def _option(engine: Attached, name: str, plan: Plan, rounds: Rounds, agreement: Agreement) -> Option:
    found, variance = total(agreement.plans[name]), agreement.added_variance(name)
    unbiased = plan.used_sources() <= {one for one, spec in specs().items() if spec.unbiased} and not plan.is_coarse
    return Option(
        name,
        rounds.median(name),
        rounds.speed_up(name, PLAIN),
        exact=False,
        kept=kept_progress(found.cosine, variance, unbiased),
        peak_bytes=peak_bytes(lambda: engine.step(plan), engine.subject.device),
        code=PLAN_CODE if name == PLAN else (),
        caveat=SAME_DIRECTION if _learns(name) else "",
    )


def _finding(name: str, option: Option, agreement: Agreement, sent_bytes: int | None) -> SourceFinding:
    sums = agreement.plans[name]
    whole = total(sums)

    def figures(layer: str, one: Sums) -> dict[str, float | None]:
        return {"cosine": one.cosine, "error": one.error, "added_variance": agreement.added_variance(name, layer)}

    layers = {layer: figures(layer, one) for layer, one in sums.items()}
    return SourceFinding(option, whole.cosine, whole.error, agreement.added_variance(name), layers, sent_bytes)


def _plan(plan: Plan, layers: list[str], options: Mapping[str, Option], agreement: Agreement) -> PlanFinding:
    """The plan, if it pays as a whole; else `backprop` everywhere."""
    option = options.get(PLAN)
    variance = None if option is None else agreement.added_variance(PLAN)
    if option is None or not option.pays:
        reason = "what pays in single layers is not sure to pay together" if plan.overrides else "no source pays here"
        note = {"advised": f"{reason}, so every gradient is exact"}
        return PlanFinding(table_of(BP, layers, note), option=option, added_variance=variance)
    note = {"advised": f"worth {option.worth:.2f} x the progress in a second, {option.speed_up.text()} in time"}
    return PlanFinding(table_of(plan, layers, note), tuple(plan.overrides), option, variance)
