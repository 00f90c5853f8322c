"""What a case is: some input, what is done with it, and what is to be said of the result."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """How a case ended; all but the first two are failures."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    TRACEBACK = "traceback"
    HANG = "hang"
    EXECUTED = "code executed"
    ESCAPED = "wrote outside"
    WRONG = "silently wrong"
    LITTER = "litter left"
    MEMORY = "memory or disk"
    CRASH = "crash"
    MUTE = "no message"


GOOD = (Kind.REFUSED, Kind.ACCEPTED)


class Failed(Exception):  # noqa: N818 - said by a case of itself
    """A case found by itself what is wrong."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True)
class Case:
    """One mutated input.

    Attributes:
        about: What was done to the input, in a line.
        run: Uses it. Called in a folder of its own that holds the input; exits as the command line does.
        complain: Called where `run` accepted the input: what is wrong with what came out, or None.
        must_refuse: No such input may be accepted.
        stop_seconds: Work that goes on for so long is legitimate, and is stopped by Ctrl-C.
        counts: What else to add up, filled while the case runs.
    """

    about: str
    run: Callable[[], object]
    complain: Callable[[], str | None] = lambda: None
    must_refuse: bool = False
    stop_seconds: float | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A kind of input.

    Attributes:
        name: On the command line.
        about: What is tried, for the table.
        cases: In a full run.
        make: Draws a case and writes its input into the current folder; the second argument is `prepare`'s folder.
        prepare: Writes what all cases start from, once.
        memory_bytes: More than this for a small input is a failure, even where the input was refused in the end.
        limit_seconds: A case that takes longer hangs, on a machine that does nothing else.
    """

    name: str
    about: str
    cases: int
    make: Callable[[random.Random, Path], Case]
    prepare: Callable[[Path], None] = lambda folder: None
    limit_seconds: float = 30.0
    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class Outcome:
    """How one case ended; `signature` is the same for failures that likely have one cause."""

    target: str
    index: int
    kind: Kind
    about: str = ""
    detail: str = ""
    signature: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


def random_of(target: str, seed: int, index: int) -> random.Random:
    """The randomness of one case depends on nothing else, so that it can be had again alone."""
    return random.Random(f"{target}/{seed}/{index}")
