"""The seconds of a measurement: how its parts share them, and who is told how far it is."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from adagp.advice.rounds import Candidate, Clock, Rounds, measure

Progress = Callable[[float, str], None]
"""Told the share of the time that is over, and what is measured now."""


class Part(NamedTuple):
    """A part of the measurement: its name, and where it begins and ends as a share of the time."""

    name: str
    begin: float
    end: float


EXACT = Part("exact options", 0.0, 0.35)
TOGETHER = Part("what pays, together", 0.35, 0.45)
PROCESSES = Part("allocator settings", 0.45, 0.7)
SOURCES = Part("sources", 0.7, 1.0)
FIRST_SHARE = 0.05
"""Of the time, about the most for the batches before all parts, to learn how long one takes."""
PARTS = (EXACT, TOGETHER, PROCESSES, SOURCES)


class Budget:
    """A clock and the seconds that may pass on it.

    A part that needs less leaves its time to those after it; one that is left out, to all others.
    """

    def __init__(self, clock: Clock, seconds: float, progress: Progress) -> None:
        """It begins now."""
        self.clock, self.seconds = clock, seconds
        self._start, self._progress = clock(), progress
        self._parts = list(PARTS)

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self.clock() - self._start

    def deadline(self, part: Part) -> float:
        """When a part has to end, on the clock."""
        return self._start + sum(self.seconds_of(one) for one in self._parts if one.end <= part.end)

    def seconds_of(self, part: Part) -> float:
        """What a part gets, if those before it need all of theirs."""
        return (part.end - part.begin) / sum(one.end - one.begin for one in self._parts) * self.seconds

    def leave_out(self, part: Part) -> None:
        """Share out the time of a part that there is nothing to do in."""
        self._parts.remove(part)

    def left(self, part: Part) -> float:
        """Seconds until a part has to end; negative where it is late."""
        return self.deadline(part) - self.clock()

    def measure(self, candidates: Sequence[Candidate], part: Part) -> Rounds:
        """Rounds until a part has to end."""
        share = part.end - part.begin
        return measure(candidates, self.clock, self.deadline(part), tick=self.tick(part.name), share=share)

    def tick(self, text: str) -> Callable[[], None]:
        """Tells how far it is, and what is measured now."""
        return lambda: self._progress(min(self.spent / self.seconds, 1.0), text)

    def extend(self, seconds: float) -> None:
        """Add seconds that are not to be counted."""
        self._start += seconds
