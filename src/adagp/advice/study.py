"""Measures a training for a given time and says what would make it faster or smaller."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from adagp._engine.finite import NonFiniteError
from adagp.advice.budget import FIRST_SHARE, PROCESSES, SOURCES, Budget, Progress
from adagp.advice.checking import check_first_batch, check_parts, explained
from adagp.advice.compiled import COMPILE, is_compiled
from adagp.advice.environments import can_start, study_environments
from adagp.advice.exact_study import NO_TIME, study_compiled, study_exact
from adagp.advice.kept import unchanged
from adagp.advice.messages import shared_clock
from adagp.advice.result import Advice
from adagp.advice.rounds import SHORTEST, Clock
from adagp.advice.sources import SourceStudy, batches_for, study_sources
from adagp.advice.subject import Subject, build_subject
from adagp.advice.verdict import with_verdict
from adagp.measure import clock as device_clock
from adagp.measure import peak_bytes
from adagp.schedules.sources import specs
from adagp.user_code import one_line

SECONDS = 60.0
LOADING_SHARE = 0.1
"""Of the time, about the most to wait for batches of the loader."""
FIRST_BATCHES = 9
"""Most batches to learn how long one takes: other work may fall on a single one."""
COMPILE_ASKED = "its first batch may take a minute or more; ask for it by compile=True or --compile"


def advise(
    model: nn.Module,
    optimizer: Optimizer,
    closure: Callable[..., Any],
    *,
    loader: Iterable[Any] | None = None,
    seconds: float = SECONDS,
    compile: bool = False,  # noqa: A002
    worker: Sequence[str] | None = None,
    clock: Clock | None = None,
    progress: Progress = lambda share, text: None,
) -> Advice:
    """Measure what would make this training faster or smaller on this machine.

    Every option is measured in turn with the training as it is. The model and the optimizer are left bit for bit as
    they were.

    Args:
        model: The model, on its device and in the mode it trains in.
        optimizer: Its optimizer.
        closure: Returns the loss of a batch. Without a loader it takes no argument, or the scale of its samples; with
            one it takes a batch, or a batch and the scale.
        loader: Batches; a few are taken. With several of them the spread between batches is known, without which
            noise cannot be judged.
        seconds: About how long to measure. More make the intervals narrower.
        compile: Also measure `torch.compile`, whose first batch may take a minute or more, which `seconds` does not
            count.
        worker: A command that starts the same training in another process and calls `adagp.advice.process.serve`;
            with it allocator settings are measured too.
        clock: A clock in seconds; by default one that waits for the device.
        progress: Called after every batch with the share of the time that is over, and what is measured.

    Raises:
        AdviceError: When an argument cannot be used, or a batch fails; the message names it and the remedy.
    """
    budget = Budget(shared_clock(model, clock or device_clock(_device(model))), seconds, progress)
    with unchanged(model, optimizer):
        subject = build_subject(model, optimizer, closure, loader, budget.clock, LOADING_SHARE * seconds)
        check_first_batch(subject)
        with explained("closure: a later batch", model):
            advice = _study(subject, budget, compile, worker)
        check_parts(subject)
    return with_verdict(advice)


def _device(model: object) -> torch.device:
    """Where a model's first parameter is; the CPU where it has none that holds numbers."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((one.device for one in parameters if not one.is_meta), torch.device("cpu"))


def _study(subject: Subject, budget: Budget, compiles: bool, worker: Sequence[str] | None) -> Advice:
    with subject.resting():
        phases = _phases(subject, budget)
        check_parts(subject)  # now and at the end: early, before time is spent in vain
        batch_seconds = sum(phases.values())
        _leave_out(subject, budget, worker, batch_seconds)
        exact = study_exact(subject, budget, batch_seconds)
        if subject.device.type == "cpu":
            study_environments(worker, budget, batch_seconds, exact)
        if is_compiled(subject.model):
            exact.not_measured[COMPILE] = "the model is compiled already"
        elif compiles:
            study_compiled(subject, budget, exact)
        else:
            exact.not_measured[COMPILE] = COMPILE_ASKED
        peak = peak_bytes(subject.step, subject.device) if budget.left(SOURCES) > exact.seconds else None
    found, for_exact = _sources(subject, budget, exact.seconds), exact.seconds_for_all
    for_all = max(for_exact, batches_for(len(specs())) * exact.seconds / (SOURCES.end - SOURCES.begin))
    not_measured = _with_time_needed(exact.not_measured, for_exact) | _with_time_needed(found.not_measured, for_all)
    loading = {"loading": median(subject.load_seconds)} if subject.load_seconds else {}
    return Advice(
        seconds=exact.seconds,
        phases=phases | loading,
        peak_bytes=peak,
        exact=tuple(exact.options),
        together=exact.together,
        sources=found.sources,
        layers=found.layers,
        plan=found.plan,
        not_measured=not_measured,
        spent=budget.spent,
        spread=found.spread,
        messages=exact.messages,
    )


def _leave_out(subject: Subject, budget: Budget, worker: Sequence[str] | None, batch_seconds: float) -> None:
    """Leave the parts of the time that nothing can be done in to the others."""
    if subject.device.type != "cpu" or not can_start(worker, budget.seconds_of(PROCESSES), batch_seconds):
        budget.leave_out(PROCESSES)
    if budget.seconds_of(SOURCES) < batches_for(1) * batch_seconds:
        budget.leave_out(SOURCES)


def _phases(subject: Subject, budget: Budget) -> dict[str, float]:
    """Median seconds of forward, backward and optimizer."""
    laps: list[dict[str, float]] = []
    begin, tick = budget.clock(), budget.tick("as it is")
    while len(laps) < FIRST_BATCHES and (not laps or budget.clock() - begin < FIRST_SHARE * budget.seconds):
        laps.append(_in_parts(subject, budget.clock))
        tick()
    return {name: median(lap[name] for lap in laps) for name in laps[0]}


def _in_parts(subject: Subject, clock: Clock) -> dict[str, float]:
    """The seconds of each part of one batch: apart from the rounds, because looking at a clock may take time."""
    marks = [clock()]
    loss = subject.loss_of()
    marks.append(clock())
    loss.backward()
    marks.append(clock())
    subject.optimizer.step()
    subject.optimizer.zero_grad(set_to_none=True)
    marks.append(clock())
    seconds = [max(after - before, SHORTEST) for before, after in pairwise(marks)]
    return dict(zip(("forward", "backward", "optimizer"), seconds, strict=True))


def _sources(subject: Subject, budget: Budget, batch_seconds: float) -> SourceStudy:
    """The study of sources, or why there is none: what is known without it must not be lost."""
    try:
        return study_sources(subject, budget, batch_seconds)
    except NonFiniteError:
        reason = "at this learning rate a loss or gradient is not finite after a few batches; lower it, or check them"
    except ValueError as error:  # says itself what is wrong
        reason = " ".join(str(error).split())
    except Exception as error:
        reason = one_line(error)
    return SourceStudy(not_measured={"sources": reason})


def _with_time_needed(not_measured: Mapping[str, str], seconds: float) -> dict[str, str]:
    """The reasons, where "no time" also says how much would do."""
    reason = f"{NO_TIME}, about {ceil(seconds)} s would be enough"
    return {name: reason if text == NO_TIME else text for name, text in not_measured.items()}
