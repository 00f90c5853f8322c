"""One thing to change in a training."""

from dataclasses import asdict, dataclass
from typing import Any

from adagp.advice.estimate import Estimate

MOST_SPEED_UP = 10.0
"""No single change makes a batch faster than this, however few rounds there were."""


@dataclass(frozen=True)
class Option:
    """One thing to change, and what it gives.

    Attributes:
        name: Its name.
        seconds: Median seconds of a batch.
        speed_up: Over the training as it is.
        exact: Whether gradients stay exact up to rounding.
        kept: The progress of a step, that of an exact one being 1.
        start_seconds: Seconds of the first batch beyond those of a later one, where they matter.
        peak_bytes: Peak memory of a batch; None where it was not measured.
        code: The lines to write.
        last_part: How much faster the last of several parts makes the others; None where it was not measured.
        environment: Whether it is set in the shell, before Python starts.
        caveat: Why a short look cannot show that it pays; empty where it can.
    """

    name: str
    seconds: float
    speed_up: Estimate
    exact: bool = True
    kept: float = 1.0
    start_seconds: float = 0.0
    peak_bytes: int | None = None
    code: tuple[str, ...] = ()
    last_part: Estimate | None = None
    environment: bool = False
    caveat: str = ""

    @property
    def worth(self) -> float:
        """Progress in a second, that of the training as it is being 1."""
        return self.speed_up.ratio * self.kept

    @property
    def most_worth(self) -> float:
        """The upper end of the interval of `worth`."""
        return min(self.speed_up.high, MOST_SPEED_UP) * self.kept

    @property
    def plain_batches(self) -> float:
        """What the same time would buy without it: batches, or parts of one, of the training as it is."""
        return 1 / self.speed_up.ratio

    @property
    def pays(self) -> bool:
        """Whether the whole interval says that it is worth more than the training as it is, without a caveat."""
        adds = self.last_part is None or self.last_part.is_faster
        return self.speed_up.low * self.kept > 1 and adds and not self.caveat

    @property
    def finding(self) -> str:
        """A word for the table."""
        if self.pays:
            return "yes"
        if self.most_worth < 1 or (self.last_part is not None and self.last_part.is_slower):
            return "no"
        return "see below" if self.caveat else "unclear"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        last = None if self.last_part is None else self.last_part.to_dict()
        values = {**asdict(self), "code": list(self.code), "speed_up": self.speed_up.to_dict(), "last_part": last}
        return {**values, "worth": self.worth, "pays": self.pays, "plain_batches": self.plain_batches}
