"""One number of a paper, and what became of it here."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What became of a paper's number."""

    REPRODUCED = "reproduced"
    REFUTED = "refuted"
    OPEN = "not checkable here"


@dataclass(frozen=True)
class Row:
    """A figure, a table or a stated number.

    Attributes:
        where: Its place in the paper.
        what: What it is about.
        theirs: What the paper has.
        verdict: What became of it.
        ours: What we have; for what is not checkable, the nearest thing that we have, or `-`.
        how: The command that gives ours, or the reason for the verdict.
    """

    where: str
    what: str
    theirs: str
    verdict: Verdict
    ours: str
    how: str

    def __post_init__(self) -> None:
        """Refuse a row with an empty cell."""
        if not all((self.where, self.what, self.theirs, self.ours, self.how)):
            raise ValueError(f"{self.where or self.what}: a cell is empty; say '-' and give the reason")


def judged(holds: bool) -> Verdict:
    """Reproduced if it holds."""
    return Verdict.REPRODUCED if holds else Verdict.REFUTED


def near(ours: float, theirs: float, tolerance: float = 0.02) -> Verdict:
    """Reproduced if it agrees to within a fraction."""
    return judged(abs(ours - theirs) <= tolerance * abs(theirs))
