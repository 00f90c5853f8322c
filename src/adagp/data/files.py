"""The errors for data that is missing or damaged."""

from collections.abc import Sequence
from pathlib import Path

from adagp.errors import AdagpError


class MissingDataError(AdagpError, FileNotFoundError):
    """Data was not found; the message states the expected layout and where to get the files."""


class CorruptDataError(AdagpError, ValueError):
    """A file has the wrong content; the message names the file, the fault and the remedy."""


def missing(name: str, root: Path | None, layout: Sequence[str], source: str) -> MissingDataError:
    """The error for a data set that was not found: the expected layout and where to get it, in one line."""
    where = f"it is not in {root}" if root else "no data root was given"
    return MissingDataError(
        f"{name}: {where}. Expected, with ROOT the folder given by --data-root or ADAGP_DATA: {'; '.join(layout)}."
        f" {source}"
    )
