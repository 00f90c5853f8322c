"""What the loaders share: finding packaged files, and the errors for data that is missing or damaged."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from adagp.errors import AdagpError


class MissingDataError(AdagpError, FileNotFoundError):
    """Data is not where it was looked for; the message states the layout expected and where to get it."""


class CorruptDataError(AdagpError, ValueError):
    """A file is there but is not what it should be; the message names the file, the fault and the remedy."""


def missing(name: str, root: Path | None, layout: Sequence[str], source: str) -> MissingDataError:
    """The error for a set that was not found, in one line: what was expected, and where to get it."""
    where = f"it is not in {root}" if root else "no data root was named"
    return MissingDataError(
        f"{name}: {where}. Expected, with ROOT the folder named by --data-root or ADAGP_DATA: {'; '.join(layout)}."
        f" {source}"
    )


def packaged_file(package: str, *parts: str, distribution: str) -> Path:
    """Path of a file inside an installed package, without importing it: both packages used here take seconds to import.

    Raises:
        MissingDataError: if the package or the file in it is absent.
    """
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        path = Path(location, *parts)
        if path.is_file():
            return path
    file = "/".join((package, *parts))
    if spec is None:
        raise MissingDataError(f"{file}: package {distribution!r} is not installed; get it: pip install 'adagp[data]'")
    raise MissingDataError(
        f"{file}: package {distribution!r} is installed without this file; get it: pip install --force-reinstall "
        f"--no-deps {distribution}"
    )
