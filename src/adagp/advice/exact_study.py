"""What the options that leave gradients exact give this training: one by one, together, and compiled on top."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from adagp.advice.budget import EXACT, FIRST_SHARE, TOGETHER, Budget
from adagp.advice.checkpointing import CHECKPOINTING, checkpoint_options
from adagp.advice.compiled import COMPILE, compile_option, is_compiled
from adagp.advice.exact import CHANNELS_LAST, ExactOption, exact_options
from adagp.advice.messages import SILENT, MessagesFinding, SharedClock, buffer_bytes, gradient_bytes
from adagp.advice.option import Option
from adagp.advice.rounds import LEAST_BATCHES, Candidate, Rounds, affordable, measure
from adagp.advice.subject import Subject
from adagp.measure import peak_bytes
from adagp.patience import TookTooLongError, at_most
from adagp.user_code import one_line

AS_IS = "as it is"
NO_TIME = "there is no time left for it"
COMPILE_SHARE = 0.15
"""Of the time, for the rounds of `torch.compile`."""
MOST_STARTS = 5.0
"""Times the time, for its first batch."""
LEAST_TOGETHER = 3
"""Ways to do a batch, with that as it is, from which two options may pay together."""
COMPILED_ANEW = "the model would be compiled anew in every turn; measure it before torch.compile"
OTHER_LAYOUT = "DistributedDataParallel was built around the other layout; measure it in one process"


@dataclass
class ExactStudy:
    """What was found out about exact options.

    Attributes:
        seconds: Median seconds of a batch as it is.
        options: Each by itself.
        together: Those that pay, measured together; None where there are fewer than two.
        best: What those that pay are made of.
        messages: What ranks send each other; None with a single one.
        not_measured: Options without a figure, each with the reason.
        seconds_for_all: About how many seconds to ask for, so that there is time for every option.
    """

    seconds: float
    options: list[Option] = field(default_factory=list)
    together: Option | None = None
    best: list[ExactOption] = field(default_factory=list)
    messages: MessagesFinding | None = None
    not_measured: dict[str, str] = field(default_factory=dict)
    seconds_for_all: float = 0.0


def study_exact(subject: Subject, budget: Budget, batch_seconds: float) -> ExactStudy:
    """Measure in turn what leaves the gradients exact, then together what pays.

    Args:
        subject: The training.
        budget: Its time.
        batch_seconds: Of a batch as it is, about.
    """
    study = ExactStudy(batch_seconds)
    possible = _for_ranks([*exact_options(subject), *_checkpointing(subject, study)], budget, study)
    needed = budget.spent + (len(possible) + 1) * LEAST_BATCHES * batch_seconds
    study.seconds_for_all = needed / (EXACT.end - FIRST_SHARE)
    if affordable(batch_seconds, budget.left(EXACT)) < LEAST_TOGETHER:
        budget.leave_out(TOGETHER)
    options = possible[: max(affordable(batch_seconds, budget.left(EXACT)) - 1, 0)]
    study.not_measured |= {option.name: NO_TIME for option in possible[len(options) :]}
    plain = Candidate(AS_IS, subject.step)
    candidates = [plain, *_silent(subject, budget)]
    candidates += [Candidate(option.name, subject.step, option.ready) for option in options]
    if len(candidates) > 1:
        rounds = budget.measure(candidates, EXACT)
        study.seconds = rounds.median(AS_IS)
        study.messages = _messages(subject, budget, rounds)
        study.options = list(_found(subject, options, rounds))
        study.not_measured |= rounds.not_measured
    study.best = _compatible(options, study.options)
    if len(study.best) > 1:
        name = _joined(study.best)
        together = Candidate(name, subject.step, partial(_all_of, study.best))
        rounds = budget.measure([plain, together], TOGETHER)
        study.not_measured |= rounds.not_measured
        if not rounds.not_measured:
            speed_up = rounds.speed_up(name, AS_IS)
            study.together = Option(name, rounds.median(name), speed_up, code=_code_of(study.best))
    return study


def _checkpointing(subject: Subject, study: ExactStudy) -> list[ExactOption]:
    options = checkpoint_options(subject)
    if not is_compiled(subject.model):
        return options
    study.not_measured |= {option.name: COMPILED_ANEW for option in options}
    return []


def _for_ranks(options: list[ExactOption], budget: Budget, study: ExactStudy) -> list[ExactOption]:
    """Those that can be measured while ranks share the model: its wrapper copies gradients of another layout."""
    if not isinstance(budget.clock, SharedClock):
        return options
    study.not_measured |= {option.name: OTHER_LAYOUT for option in options if option.name == CHANNELS_LAST}
    return [option for option in options if option.name != CHANNELS_LAST]


def _found(subject: Subject, options: Sequence[ExactOption], rounds: Rounds) -> Iterator[Option]:
    for option in options:
        if option.name not in rounds.not_measured:
            memory = None
            if option.name == CHECKPOINTING:
                with option.ready():
                    memory = peak_bytes(subject.step, subject.device)
            speed_up = rounds.speed_up(option.name, AS_IS)
            yield Option(option.name, rounds.median(option.name), speed_up, code=option.code, peak_bytes=memory)


# --- messages


def _silent(subject: Subject, budget: Budget) -> list[Candidate]:
    """A batch without messages, where ranks share the model; its weights hardly move, and are put back."""
    if not isinstance(budget.clock, SharedClock):
        return []
    return [Candidate(SILENT, subject.step, budget.clock.without_messages)]


def _messages(subject: Subject, budget: Budget, rounds: Rounds) -> MessagesFinding | None:
    if not isinstance(budget.clock, SharedClock) or SILENT in rounds.not_measured:
        return None
    sent = gradient_bytes(subject.model) + buffer_bytes(subject.model)
    seconds = rounds.median(AS_IS) - rounds.median(SILENT)
    return MessagesFinding(budget.clock.count, sent, seconds, rounds.speed_up(SILENT, AS_IS))


# --- several options


def _compatible(options: Sequence[ExactOption], found: Sequence[Option]) -> list[ExactOption]:
    """The options that pay, the best first, without those that exclude each other."""
    by_name = {option.name: option for option in options}
    chosen: list[ExactOption] = []
    for option in sorted(found, key=lambda option: -option.worth):
        if option.pays and not any(option.name in other.excludes for other in chosen):
            chosen.append(by_name[option.name])
    return chosen


def _joined(options: Sequence[ExactOption]) -> str:
    return " + ".join(option.name for option in options)


def _code_of(options: Sequence[ExactOption]) -> tuple[str, ...]:
    return tuple(line for option in options for line in option.code)


@contextmanager
def _all_of(options: Sequence[ExactOption]) -> Iterator[None]:
    with ExitStack() as stack:
        for option in options:
            stack.enter_context(option.ready())
        yield


def study_compiled(subject: Subject, budget: Budget, study: ExactStudy) -> None:
    """Measure `torch.compile` on top of what pays; the seconds that this takes are not counted.

    Its first batch is given up after `MOST_STARTS` times the time. Ranks that share the model cannot give up alone.
    """
    option = compile_option(subject)
    whole = [*study.best, option]
    name, before = _joined(whole), _joined(study.best)
    tick = budget.tick(f"{COMPILE}, beyond the time")
    tick()
    begin, most = budget.clock(), MOST_STARTS * budget.seconds
    try:
        with nullcontext() if isinstance(budget.clock, SharedClock) else at_most(most), _all_of(whole):
            subject.step()
    except TookTooLongError:
        study.not_measured[COMPILE] = f"given up: its first batch did not end within {most:.3g} s"
        budget.extend(budget.clock() - begin)
        return
    except Exception as error:
        study.not_measured[COMPILE] = f"it fails here: {one_line(error)}"
        return
    first = budget.clock()
    candidates = [Candidate(AS_IS, subject.step), Candidate(name, subject.step, partial(_all_of, whole))]
    if study.best:
        candidates.append(Candidate(before, subject.step, partial(_all_of, study.best)))
    deadline = first + COMPILE_SHARE * budget.seconds
    rounds = measure(candidates, budget.clock, deadline, tick=tick, share=COMPILE_SHARE)
    budget.extend(budget.clock() - begin)
    study.not_measured |= rounds.not_measured
    if rounds.not_measured:
        return
    seconds = rounds.median(name)
    study.options.append(
        Option(
            name,
            seconds,
            rounds.speed_up(name, AS_IS),
            start_seconds=first - begin - seconds,
            code=_code_of(whole),
            last_part=rounds.speed_up(name, before) if study.best else None,
        )
    )
