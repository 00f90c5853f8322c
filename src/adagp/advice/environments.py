"""What settings of the allocator give this training, measured in processes of their own."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from adagp.advice.allocator import EnvironmentOption, environment_options
from adagp.advice.budget import PROCESSES, TOGETHER, Budget
from adagp.advice.exact_study import AS_IS, NO_TIME, ExactStudy
from adagp.advice.option import Option
from adagp.advice.process import Worker, WorkerError
from adagp.advice.rounds import LEAST_BATCHES, Candidate, Rounds

LEAST_START = 8.0
"""Seconds that a process needs to start, at least."""
PATIENCE = 20
"""Batches as they are after which a batch of another process is given up."""
OTHER_PROCESS = (
    "it acts when a process starts; use the command line without torchrun, with --module for a training of yours"
)


def can_start(worker: Sequence[str] | None, seconds: float, batch_seconds: float) -> bool:
    """Whether there is something to measure in processes of their own, and the time for it."""
    options = environment_options()
    if not options or worker is None:
        return False
    return seconds - _batches(options) * batch_seconds >= LEAST_START


def _batches(options: Sequence[EnvironmentOption]) -> int:
    """The least number of batches of all processes, the one without a setting included."""
    return (len(options) + 1) * LEAST_BATCHES


def study_environments(worker: Sequence[str] | None, budget: Budget, batch_seconds: float, study: ExactStudy) -> None:
    """Start one process for each setting, and measure them in turn with one that has none.

    Args:
        worker: The command of such a process; None where there is none.
        budget: The time.
        batch_seconds: Of a batch as it is.
        study: Takes what is found.
    """
    options = environment_options()
    names = [option.name for option in options]
    if not options or worker is None:
        study.not_measured |= dict.fromkeys(names, OTHER_PROCESS)
        return
    batches = _batches(options) * batch_seconds
    start_seconds = budget.left(PROCESSES) - batches
    if not can_start(worker, budget.left(PROCESSES), batch_seconds):
        needed = (LEAST_START + batches) / (PROCESSES.end - TOGETHER.end)
        study.seconds_for_all = max(study.seconds_for_all, needed)
        study.not_measured |= dict.fromkeys(names, NO_TIME)
        return
    try:
        rounds = _in_processes(worker, options, budget, start_seconds, LEAST_START + PATIENCE * batch_seconds)
    except WorkerError as error:
        study.not_measured |= dict.fromkeys(names, str(error))
        return
    study.not_measured |= rounds.not_measured
    for option in options:
        name = option.name
        if name not in rounds.not_measured:
            seconds, speed_up = rounds.median(name), rounds.speed_up(name, AS_IS)
            study.options.append(Option(name, seconds, speed_up, code=option.code, environment=True))


def _in_processes(
    worker: Sequence[str],
    options: Sequence[EnvironmentOption],
    budget: Budget,
    start_seconds: float,
    patience: float,
) -> Rounds:
    start_by = budget.clock() + start_seconds
    environments = {AS_IS: {}, **{option.name: option.variables for option in options}}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(worker, variables)) for name, variables in environments.items()}
        for one in workers.values():
            one.wait(start_by - budget.clock())
        return budget.measure(
            [Candidate(name, partial(one.step, patience)) for name, one in workers.items()], PROCESSES
        )
