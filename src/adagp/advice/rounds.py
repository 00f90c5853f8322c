"""Measures several ways to do a batch side by side, in rounds.

In a round every candidate has one turn, in a random order, so that other work on the machine falls on all of them.
Ratios are taken within a round.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median

from adagp.advice.estimate import MOST_ROUNDS, Estimate, estimate

SHORTEST = 1e-9
"""Seconds of what is quicker than the clock can tell."""
_HOPELESS = 0.9
_MUCH_SLOWER = 3.0
"""The first batch of a candidate may take this many times as long as that of the first, whatever the time."""
_MOST_SHARE = 0.5
"""Of the time that is left, the most for one that takes longer."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Candidate:
    """One way to do a batch.

    Attributes:
        name: Its name.
        run: Does one batch; this alone is timed.
        ready: Puts it in force, and out of force afterwards.
    """

    name: str
    run: Callable[[], object]
    ready: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass
class Rounds:
    """What was measured.

    Attributes:
        seconds: The seconds of each candidate, by round; one that is clearly slower has no turns any more.
        failed: Candidates that raised an error, each with its first line.
        given_up: Candidates whose first batch took too long for the time, each with how long.
        spent: Seconds of all rounds, with what is not timed.
        share: Of all seconds asked for, those that these rounds get.
    """

    seconds: list[dict[str, float]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)
    spent: float = 0.0
    share: float = 1.0

    @property
    def not_measured(self) -> dict[str, str]:
        """Candidates without a figure, each with the reason."""
        return {name: f"it fails here: {reason}" for name, reason in self.failed.items()} | self.given_up

    def median(self, name: str) -> float:
        """The median seconds of a candidate."""
        return median(one[name] for one in self.seconds if name in one)

    def speed_up(self, name: str, over: str) -> Estimate:
        """How much faster a candidate is than another."""
        turns = [one for one in self.seconds if name in one]
        round_seconds = sum(sum(one.values()) for one in turns) / len(turns) + self._not_timed()
        return estimate([one[over] / one[name] for one in turns], round_seconds / self.share)

    def expected(self, candidates: Sequence[Candidate]) -> float:
        """The mean seconds of a round of these candidates, with what is not timed."""
        timed = sum(one[candidate.name] for one in self.seconds for candidate in candidates)
        return timed / len(self.seconds) + self._not_timed()

    def _not_timed(self) -> float:
        """The mean of what a round takes beside its batches."""
        return (self.spent - sum(sum(one.values()) for one in self.seconds)) / len(self.seconds)


LEAST_ROUNDS = 3
"""Rounds from which something can be told."""
LEAST_BATCHES = 1 + LEAST_ROUNDS
"""Batches of a candidate from which something can be told: one to warm up, and the rounds."""


def affordable(batch_seconds: float, seconds: float) -> int:
    """How many candidates can be measured in some time, where none is slower than a batch as it is."""
    return int(seconds / (LEAST_BATCHES * batch_seconds))


def measure(
    candidates: Sequence[Candidate],
    clock: Clock,
    deadline: float,
    *,
    tick: Callable[[], None] = lambda: None,
    seed: int = 0,
    share: float = 1.0,
) -> Rounds:
    """Run one round to warm up and then others until the deadline, but at least one.

    A candidate that is much slower than the first, and whose rounds would take most of the time, is given up after its
    batch to warm up. Where there is still no time for `LEAST_ROUNDS` of all, the slowest candidates have
    one turn only: the others are then known, instead of none.

    Args:
        candidates: The first is what the others are compared with; its errors are not caught. Any other one that fails
            has no turns any more.
        clock: In seconds.
        deadline: On that clock. A round that would end after it is not begun.
        tick: Called after every batch.
        seed: Of the order in a round.
        share: Of all seconds asked for, those that these rounds get.
    """
    result = Rounds(share=share)
    warm = list(_warm(candidates, clock, result, tick))
    working = list(_quick_enough(warm, result, deadline - clock()))
    order = random.Random(seed)
    while len(result.seconds) < MOST_ROUNDS:
        begin = clock()
        if result.seconds and begin + result.expected(working) > deadline:
            break
        found = {}
        for candidate in order.sample(working, len(working)):
            with _noted(candidate, working[0], result), candidate.ready():
                start = clock()
                candidate.run()
                found[candidate.name] = max(clock() - start, SHORTEST)
            tick()
        result.seconds.append(found)
        result.spent += clock() - begin
        working = [one for one in working if one is working[0] or not _is_done(one, working[0], result)]
        if len(result.seconds) == 1:
            working = _quickest(working, result, deadline - clock())
    return result


def _quickest(candidates: list[Candidate], so_far: Rounds, left: float) -> list[Candidate]:
    """The candidates without the slowest, so that the least number of rounds fits into the time that is left.

    The reference stays, and one beside it.
    """
    kept = sorted(candidates[1:], key=lambda one: so_far.seconds[0][one.name])
    while len(kept) > 1 and (LEAST_ROUNDS - 1) * so_far.expected([candidates[0], *kept]) > left:
        kept.pop()
    return [one for one in candidates if one is candidates[0] or one in kept]


def _is_done(candidate: Candidate, reference: Candidate, so_far: Rounds) -> bool:
    """Whether a candidate failed, or is slower beyond doubt: its turns are better spent on the others."""
    if candidate.name in so_far.failed:
        return True
    return so_far.speed_up(candidate.name, reference.name).high < _HOPELESS


def _warm(
    candidates: Sequence[Candidate], clock: Clock, result: Rounds, tick: Callable[[], None]
) -> Iterator[tuple[Candidate, float]]:
    """Run every candidate once, with its seconds: caches are cold, and what cannot run at all shows now."""
    for candidate in candidates:
        seconds = 0.0
        with _noted(candidate, candidates[0], result), candidate.ready():
            start = clock()
            candidate.run()
            seconds = clock() - start
        if candidate.name not in result.failed:
            yield candidate, seconds
        tick()


def _quick_enough(warm: Sequence[tuple[Candidate, float]], result: Rounds, left: float) -> Iterator[Candidate]:
    """The candidates without those that would eat the time that is left; these are noted."""
    reference = warm[0][1]
    most = max(_MUCH_SLOWER * reference, _MOST_SHARE * left / LEAST_ROUNDS)
    for candidate, seconds in warm:
        if seconds <= most:
            yield candidate
        else:
            reason = f"given up after its first batch, which took {seconds:.3g} s instead of {reference:.3g}"
            result.given_up[candidate.name] = reason


@contextmanager
def _noted(candidate: Candidate, reference: Candidate, result: Rounds) -> Iterator[None]:
    """Inside, an error of a candidate is noted; that of the reference is raised."""
    try:
        yield
    except Exception as error:
        if candidate is reference:
            raise
        result.failed[candidate.name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
