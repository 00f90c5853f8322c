"""What is said where another rank is gone: torch's backends name a socket, and no remedy."""

from torch import distributed

from adagp.errors import AdagpError

REMEDY = "see its log, start all ranks again, and resume from the last checkpoint"
_SAYINGS = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "timed out",
    "application timeout",
    "remote process",
)
"""What torch's backends say where a rank is gone."""


class LostRankError(AdagpError, RuntimeError):
    """Another rank has died, or answers no more."""


def is_lost(error: BaseException | None) -> bool:
    """Whether an error of torch says that another rank is gone."""
    if isinstance(error, AdagpError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, distributed.DistError) or any(text in str(error).lower() for text in _SAYINGS)


def raise_if_lost(error: BaseException | None, when: str) -> None:
    """Say it where another rank is gone, and what to do."""
    if is_lost(error):
        raise LostRankError(
            f"another rank did not answer {when}, because its process died, stopped by an error of its own, or hangs: "
            f"{REMEDY}"
        ) from error
