"""Measures a training for a given time and says what would make it faster or smaller."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from torch import nn
from torch.optim import Optimizer

from adagp.advice.allocator import EnvironmentOption, environment_options
from adagp.advice.checkpointing import CHECKPOINTING, checkpoint_options
from adagp.advice.compiled import COMPILE, compile_option
from adagp.advice.exact import CHANNELS_LAST, ExactOption, exact_options
from adagp.advice.kept import unchanged
from adagp.advice.messages import SILENT, MessagesFinding, SharedClock, buffer_bytes, gradient_bytes, shared_clock
from adagp.advice.option import Option
from adagp.advice.process import Worker, WorkerError
from adagp.advice.result import Advice
from adagp.advice.rounds import LEAST_BATCHES, SHORTEST, Candidate, Clock, Rounds, affordable, measure
from adagp.advice.sources import NO_TIME, SourceStudy, batches_for, study_sources
from adagp.advice.subject import Subject, build_subject, check_first_batch
from adagp.advice.verdict import with_verdict
from adagp.measure import clock as device_clock
from adagp.measure import peak_bytes
from adagp.schedules.sources import specs
from adagp.user_code import one_line

SECONDS = 60.0
AS_IS = "as it is"
FIRST_BATCHES, FIRST_SHARE = 5, 0.03
"""Most batches, and about most of the time, to learn how long one takes: other work may fall on a single one."""
PHASE_BATCHES, PHASE_SHARE = 9, 0.05
"""Most batches, and most of the time, for the parts of a batch."""
# Where each part of the measurement ends, as a share of the time.
_EXACT_ENDS, _TOGETHER_ENDS, _PROCESSES_END = 0.35, 0.45, 0.7
LEAST_START = 8.0
"""Seconds that a process needs to start, at least."""
COMPILE_SHARE = 0.15
"""Of the time, for the rounds of `torch.compile`."""
COMPILE_ASKED = "its first batch may take a minute or more; ask for it by compile=True or --compile"
OTHER_LAYOUT = "DistributedDataParallel was built around the other layout; measure it in one process"
OTHER_PROCESS = "it acts when a process starts; use the command line, with --module for a training of yours"

Progress = Callable[[float, str], None]
"""Told the share of the time that is over, and what is measured now."""


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
        AdviceError: When an argument cannot be used, or the first batch fails; the message names it and the remedy.
    """
    time = clock or device_clock(next(iter(model.parameters())).device) if isinstance(model, nn.Module) else _no_clock
    time = shared_clock(model, time)
    start = time()
    subject = build_subject(model, optimizer, closure, loader, time)
    with unchanged(subject.model, subject.optimizer):
        check_first_batch(subject)
        study = _Study(subject, time, start, seconds, progress)
        study.time_a_batch()
        return with_verdict(study.advice(compile, worker))


def _no_clock() -> float:
    return 0.0


class _Study:
    """One measurement: the subject, the clock, and what was found so far."""

    def __init__(self, subject: Subject, clock: Clock, start: float, seconds: float, progress: Progress) -> None:
        self._subject, self._clock, self._start, self._seconds = subject, clock, start, seconds
        self._progress = progress
        self._batch_seconds = self._for_all = 0.0
        self._not_measured: dict[str, str] = {}

    def time_a_batch(self) -> None:
        """Learn how much can be measured at all."""
        found: list[float] = []
        with self._subject.resting():
            while len(found) < FIRST_BATCHES and (not found or sum(found) < FIRST_SHARE * self._seconds):
                begin = self._clock()
                self._subject.step()
                found.append(max(self._clock() - begin, SHORTEST))
        self._batch_seconds = median(found)

    def advice(self, compiles: bool, worker: Sequence[str] | None) -> Advice:
        with self._subject.resting():
            options = self._for_ranks([*exact_options(self._subject), *checkpoint_options(self._subject)])
            self._for_all = _seconds_for(len(options), self._batch_seconds)
            options = self._affordable(options)
            candidates = [self._plain(), *self._silent(), *map(self._candidate, options)]
            rounds = self._measure(candidates, _EXACT_ENDS, "exact options")
            exact = list(self._exact(options, rounds))
            together, best = self._together(options, exact)
            exact += self._environments(worker)
            exact += self._compiled(best) if compiles else []
            peak = peak_bytes(self._subject.step, self._subject.device)
            self._batch_seconds = rounds.median(AS_IS)
            phases = self._phases()
        if not compiles:
            self._not_measured[COMPILE] = COMPILE_ASKED
        study = self._sources()
        self._say_how_long()
        return Advice(
            seconds=rounds.median(AS_IS),
            phases=phases,
            peak_bytes=peak,
            exact=tuple(exact),
            together=together,
            sources=study.sources,
            layers=study.layers,
            plan=study.plan,
            not_measured=self._not_measured,
            spent=self._clock() - self._start,
            spread=study.spread,
            messages=self._messages(rounds),
        )

    # --- the training as it is

    def _plain(self) -> Candidate:
        return Candidate(AS_IS, self._subject.step)

    def _silent(self) -> list[Candidate]:
        """A batch without messages, where ranks share the model; its weights hardly move, and are put back."""
        if not isinstance(self._clock, SharedClock):
            return []
        return [Candidate(SILENT, self._subject.step, self._clock.without_messages)]

    def _messages(self, rounds: Rounds) -> MessagesFinding | None:
        model = self._subject.model
        if not isinstance(self._clock, SharedClock):
            return None
        sent = gradient_bytes(model) + buffer_bytes(model)
        seconds = rounds.median(AS_IS) - rounds.median(SILENT)
        return MessagesFinding(self._clock.count, sent, seconds, rounds.speed_up(SILENT, AS_IS))

    def _in_parts(self) -> dict[str, float]:
        """The seconds of each part of one batch: apart from the rounds, because looking at a clock may take time."""
        subject, marks = self._subject, [self._clock()]
        loss = subject.loss_of()
        marks.append(self._clock())
        loss.backward()
        marks.append(self._clock())
        subject.optimizer.step()
        subject.optimizer.zero_grad(set_to_none=True)
        marks.append(self._clock())
        seconds = [after - before for before, after in pairwise(marks)]
        return dict(zip(("forward", "backward", "optimizer"), seconds, strict=True))

    def _phases(self) -> dict[str, float]:
        laps = [self._in_parts() for _ in range(self._phase_batches())]
        found = {name: median(lap[name] for lap in laps) for name in laps[0]}
        if self._subject.load_seconds:
            found["loading"] = median(self._subject.load_seconds)
        return found

    def _phase_batches(self) -> int:
        return max(1, min(PHASE_BATCHES, int(PHASE_SHARE * self._seconds / self._batch_seconds)))

    # --- exact options

    def _for_ranks(self, options: list[ExactOption]) -> list[ExactOption]:
        """Those that can be measured while ranks share the model: its wrapper copies gradients of another layout."""
        if not isinstance(self._clock, SharedClock):
            return options
        self._not_measured |= {option.name: OTHER_LAYOUT for option in options if option.name == CHANNELS_LAST}
        return [option for option in options if option.name != CHANNELS_LAST]

    def _affordable(self, options: list[ExactOption]) -> list[ExactOption]:
        """The first options, as many as there is time for beside the training as it is."""
        left = self._deadline(_EXACT_ENDS) - self._clock()
        count = max(affordable(self._batch_seconds, left) - 1, 0)
        self._not_measured |= {option.name: NO_TIME for option in options[count:]}
        return options[:count]

    def _candidate(self, option: ExactOption) -> Candidate:
        return Candidate(option.name, self._subject.step, option.ready)

    def _exact(self, options: Sequence[ExactOption], rounds: Rounds) -> Iterator[Option]:
        self._not_measured |= {name: f"it fails here: {reason}" for name, reason in rounds.failed.items()}
        for option in options:
            if option.name not in rounds.failed:
                speed_up, memory = rounds.speed_up(option.name, AS_IS), None
                if option.name == CHECKPOINTING:
                    with option.ready():
                        memory = peak_bytes(self._subject.step, self._subject.device)
                yield Option(option.name, rounds.median(option.name), speed_up, code=option.code, peak_bytes=memory)

    def _together(
        self, options: Sequence[ExactOption], found: Sequence[Option]
    ) -> tuple[Option | None, list[ExactOption]]:
        """What the options that pay give together, and which they are."""
        chosen = _compatible(options, found)
        if len(chosen) < 2:
            return None, chosen
        name = " + ".join(option.name for option in chosen)
        candidate = Candidate(name, self._subject.step, partial(_all_of, chosen))
        rounds = self._measure([self._plain(), candidate], _TOGETHER_ENDS, name)
        code = tuple(line for option in chosen for line in option.code)
        return Option(name, rounds.median(name), rounds.speed_up(name, AS_IS), code=code), chosen

    def _compiled(self, best: Sequence[ExactOption]) -> list[Option]:
        """`torch.compile` on top of what pays."""
        option = compile_option(self._subject)
        before = " + ".join(one.name for one in best) or AS_IS
        begin = self._clock()
        try:
            with _all_of([*best, option]):
                self._subject.step()
        except Exception as error:
            self._not_measured[option.name] = f"it fails here: {one_line(error)}"
            return []
        first = self._clock()
        candidates = [
            Candidate(before, self._subject.step, partial(_all_of, best)),
            Candidate(option.name, self._subject.step, partial(_all_of, [*best, option])),
        ]
        rounds = measure(candidates, self._clock, first + COMPILE_SHARE * self._seconds, tick=self._ticking(COMPILE))
        self._start += self._clock() - begin  # what it took is not counted
        over = before if best else Option.over
        code = tuple(line for one in (*best, option) for line in one.code)
        speed_up, start = rounds.speed_up(option.name, before), first - begin - rounds.median(option.name)
        return [Option(option.name, rounds.median(option.name), speed_up, start_seconds=start, code=code, over=over)]

    def _environments(self, worker: Sequence[str] | None) -> list[Option]:
        """Settings that act when a process starts, in processes of their own."""
        options = environment_options() if self._subject.device.type == "cpu" else []
        names = [option.name for option in options]
        if not options or worker is None:
            self._not_measured |= dict.fromkeys(names, OTHER_PROCESS)
            return []
        if self._start_by(len(options)) - self._clock() < LEAST_START:
            batches = (len(options) + 1) * LEAST_BATCHES * self._batch_seconds
            self._for_all = max(self._for_all, (LEAST_START + batches) / (_PROCESSES_END - _TOGETHER_ENDS))
            self._not_measured |= dict.fromkeys(names, NO_TIME)
            return []
        try:
            rounds = self._in_processes(worker, options)
        except WorkerError as error:
            self._not_measured |= dict.fromkeys(names, str(error))
            return []
        self._not_measured |= rounds.failed
        return [
            Option(
                option.name,
                rounds.median(option.name),
                rounds.speed_up(option.name, AS_IS),
                code=option.code,
                environment=True,
            )
            for option in options
            if option.name not in rounds.failed
        ]

    def _start_by(self, options: int) -> float:
        """When processes must have started, so that there is time to measure them."""
        return self._deadline(_PROCESSES_END) - (options + 1) * LEAST_BATCHES * self._batch_seconds

    def _in_processes(self, worker: Sequence[str], options: Sequence[EnvironmentOption]) -> Rounds:
        start_by = self._start_by(len(options))
        environments = {AS_IS: {}, **{option.name: option.variables for option in options}}
        with ExitStack() as stack:
            workers = {name: stack.enter_context(Worker(worker, variables)) for name, variables in environments.items()}
            for one in workers.values():
                one.wait(start_by - self._clock())
            candidates = [Candidate(name, one.step) for name, one in workers.items()]
            return self._measure(candidates, _PROCESSES_END, "allocator settings")

    # --- sources

    def _sources(self) -> SourceStudy:
        try:
            study = study_sources(
                self._subject, self._clock, self._deadline(1.0), self._batch_seconds, self._ticking("sources")
            )
        except ValueError as error:
            self._not_measured["sources"] = " ".join(str(error).split())
            return SourceStudy()
        self._not_measured |= study.not_measured
        return study

    # --- time

    def _say_how_long(self) -> None:
        """Replace "no time" by how much would do."""
        reason = f"{NO_TIME}, all of it takes about {self._for_all:.0f} s"
        for name, text in self._not_measured.items():
            if text == NO_TIME:
                self._not_measured[name] = reason

    def _deadline(self, share: float) -> float:
        return self._start + share * self._seconds

    def _measure(self, candidates: Sequence[Candidate], share: float, text: str) -> Rounds:
        return measure(candidates, self._clock, self._deadline(share), tick=self._ticking(text))

    def _ticking(self, text: str) -> Callable[[], None]:
        return lambda: self._progress(min((self._clock() - self._start) / self._seconds, 1.0), text)


def _seconds_for(options: int, batch_seconds: float) -> float:
    """About how long everything takes: the exact options or the sources, whichever need more of their share."""
    exact = (options + 1) * LEAST_BATCHES * batch_seconds / _EXACT_ENDS
    return max(exact, batches_for(len(specs())) * batch_seconds / (1 - _PROCESSES_END))


def _compatible(options: Sequence[ExactOption], found: Sequence[Option]) -> list[ExactOption]:
    """The options that pay, the best first, without those that exclude each other."""
    by_name = {option.name: option for option in options}
    chosen: list[ExactOption] = []
    for option in sorted(found, key=lambda option: -option.worth):
        candidate = by_name[option.name]
        if option.pays and not any(option.name in other.excludes for other in chosen):
            chosen.append(candidate)
    return chosen


@contextmanager
def _all_of(options: Sequence[ExactOption]) -> Iterator[None]:
    with ExitStack() as stack:
        for option in options:
            stack.enter_context(option.ready())
        yield
